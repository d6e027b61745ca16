"""The processes that a stack starts, those that are replaced, and their ports."""

import re
import socket
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings, load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.gateway import gateway_config
from headrace.deploy.processes.process import address
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack.checks import check_disk, check_memory, check_ports
from headrace.deploy.stack.selection import options_of_others, resolve, select
from headrace.deploy.system.ports import HOST

PROCESSES = stack_processes()
NAMES = tuple(process.name for process in PROCESSES)


def started(settings: Settings, *without: str) -> tuple[str, ...]:
    return tuple(part.name for part in select(PROCESSES, settings, without)[0])


def test_all_parts_are_started_by_default_except_those_that_need_a_collector_or_options(settings: Settings) -> None:
    assert set(NAMES) - set(started(settings)) == {"traces", "archive", "notify"}
    assert set(NAMES) - set(started(settings.model_copy(update={"otlp": "http://collector:4318"}))) == {
        "archive",
        "notify",
    }


def test_every_part_with_metrics_has_a_metrics_port_of_its_own(settings: Settings) -> None:
    mine = settings.model_copy(update={"metrics_ports": {"sink": 9464}})
    begun, _ = select(PROCESSES, mine, ())
    ports = resolve(mine, begun).metrics_ports
    assert set(ports) == {part.name for part in begun if part.metrics} | {"sink"}
    assert ports["sink"] == 9464
    assert len(set(ports.values())) == len(ports)
    assert resolve(mine, begun).metrics_ports == ports, "remembered"


def test_analytics_needs_no_engine_and_no_trainer(settings: Settings) -> None:
    assert started(settings, "vllm", "trainer", "follower") == (
        "kafka", "clickhouse", "assemble", "workers", "sink", "oncall", "dashboard",
    )  # fmt: skip


def test_the_ledger_is_checked_in_every_stack_unless_oncall_is_left_out(settings: Settings) -> None:
    assert "oncall" in started(settings)
    assert "oncall" not in started(settings, "oncall")


def test_an_address_replaces_a_part(settings: Settings) -> None:
    mine = settings.model_copy(update={"kafka": "broker:9092", "vllm": "http://engine:8000"})
    begun, external = select(PROCESSES, mine, ())
    assert [part.name for part in external] == ["kafka", "vllm"]
    assert {"assemble", "follower"} <= {part.name for part in begun}
    resolved = resolve(mine, begun)
    assert (resolved.kafka, resolved.kafka_port) == ("broker:9092", None)
    assert address(external[1], resolved) == "http://engine:8000"


def test_a_part_whose_needs_are_left_out_is_an_error_with_a_remedy(settings: Settings) -> None:
    with pytest.raises(StackError, match=r"follower needs vllm: .*--without vllm,follower.*HEADRACE_VLLM"):
        select(PROCESSES, settings, ("vllm",))


def test_an_engine_on_a_cpu_needs_a_program_that_lists_the_cores(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(settings.data))
    with pytest.raises(StackError, match=r"no.* on the PATH: install util-linux, or set HEADRACE_VLLM"):
        started(settings)
    assert "vllm" not in started(settings, "vllm", "follower")
    assert "vllm" in started(settings.model_copy(update={"options": {"vllm": {"device": "cuda"}}}))


def test_options_of_parts_that_a_stack_does_not_run_are_named(settings: Settings) -> None:
    mine = settings.model_copy(
        update={"options": {"gateway": {"idle_s": 60, "nope": 1}, "vllm": {"seed": 1}, "oncall": {"every_s": 5}}}
    )
    begun, external = select(PROCESSES, mine, ("vllm", "trainer", "follower"))
    assert options_of_others(mine, (*begun, *external)) == ["gateway.idle_s", "gateway.nope", "vllm.seed"]
    elsewhere = mine.model_copy(update={"vllm": "http://engine:8000", "options": {"vllm": {"tool_parser": "hermes"}}})
    begun, external = select(PROCESSES, elsewhere, ())
    assert options_of_others(elsewhere, (*begun, *external)) == [], "the gateway reads it"
    shared = settings.model_copy(update={"options": {"otlp": {"mask": True}}})
    begun, external = select(PROCESSES, shared, ())
    assert options_of_others(shared, (*begun, *external)) == ["otlp.mask"], "of headrace worker otlp"


def test_unknown_parts_are_reported(settings: Settings) -> None:
    with pytest.raises(StackError, match=r"--without names kafak, which is not a part: the parts are kafka, click"):
        select(PROCESSES, settings, ("kafak",))
    with pytest.raises(StackError, match=r"--set .* names trianer"):
        select(PROCESSES, settings.model_copy(update={"options": {"trianer": {}}}), ())


def test_ports_are_chosen_and_remembered(settings: Settings) -> None:
    begun, _ = select(PROCESSES, settings, ())
    first = resolve(settings, begun)
    assert first.kafka == f"127.0.0.1:{first.kafka_port}"
    assert first.clickhouse == f"http://127.0.0.1:{first.clickhouse_port}"
    assert first.vllm == f"http://127.0.0.1:{first.vllm_port}"
    assert resolve(settings, begun) == first


def test_a_taken_port_is_reported_with_its_setting(settings: Settings) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StackError, match=rf"kafka cannot listen on port {port} \(HEADRACE_KAFKA_PORT\)"):
            check_ports(settings.model_copy(update={"kafka_port": port}), PROCESSES)


def test_one_port_for_two_parts_is_refused(settings: Settings) -> None:
    twice = settings.model_copy(update={"vllm_port": 20_001, "dashboard_port": 20_001})
    with pytest.raises(StackError, match="HEADRACE_VLLM_PORT and HEADRACE_DASHBOARD_PORT are both 20001"):
        check_ports(twice, PROCESSES)


def test_too_little_memory_is_an_error_with_a_remedy(settings: Settings) -> None:
    with pytest.raises(
        StackError, match=r"1000000000 MiB of memory are needed.*--without.*HEADRACE_MIN_FREE_MEMORY_MB"
    ):
        check_memory(settings.model_copy(update={"min_free_memory_mb": 10**9}), PROCESSES)


def test_an_optional_process_is_left_out_with_what_it_needs(settings: Settings) -> None:
    assert "gateway" in started(settings)
    assert "gateway" not in started(settings, "vllm", "trainer", "follower")


def test_the_estimated_memory_of_the_whole_stack_is_below_eight_gib() -> None:
    assert sum(part.memory_mb for part in PROCESSES) < 8 * 1024


def test_the_memory_that_the_readme_asks_for_lets_the_whole_stack_start(settings: Settings) -> None:
    promised = re.search(r"You need (\d+) GiB of memory", (Path(__file__).parents[3] / "README.md").read_text())
    assert promised is not None
    assert sum(part.memory_mb for part in select(PROCESSES, settings, ())[0]) < int(promised[1]) * 1024


def test_too_little_disk_names_the_folder_and_the_setting(settings: Settings) -> None:
    with pytest.raises(StackError, match=r"data \(HEADRACE_DATA, --data\) has \d+ MiB free.*HEADRACE_MIN_FREE_DISK_MB"):
        check_disk(settings.model_copy(update={"min_free_disk_mb": 10**9}))


def test_a_data_folder_that_cannot_be_created_is_reported() -> None:
    with pytest.raises(StackError, match=r"/dev/null/data \(HEADRACE_DATA, --data\) cannot be used"):
        check_disk(load_settings(data="/dev/null/data"))


def test_a_gateway_in_front_of_several_engines_needs_no_other_address(settings: Settings) -> None:
    alone = settings.model_copy(update={"kafka": "broker:9092", "gateway_port": 8200})
    with pytest.raises(StackError, match="HEADRACE_VLLM"):
        gateway_config(alone)
    engines = ["http://gpu1:8000", "http://gpu2:8000"]
    assert gateway_config(alone.model_copy(update={"options": {"gateway": {"engines": engines}}})).engines == (
        "http://gpu1:8000",
        "http://gpu2:8000",
    )


def test_the_port_of_a_part_is_a_setting_because_others_must_know_it(settings: Settings) -> None:
    moved = settings.model_copy(update={"options": {"gateway": {"port": 8200}}})
    with pytest.raises(StackError, match=r"gateway \(--set.*: port is not set here: set HEADRACE_GATEWAY_PORT"):
        select(PROCESSES, moved, ())


def test_a_gateways_session_that_would_outlive_its_trajectory_is_an_error_with_a_remedy(settings: Settings) -> None:
    longer = settings.model_copy(update={"options": {"gateway": {"idle_s": 900}}})
    with pytest.raises(StackError, match=r"gateway.idle_s is 900, and assemble.idle_timeout_s 600.*gateway.idle_s=480"):
        select(PROCESSES, longer, ())
    both = settings.model_copy(update={"options": {"gateway": {"idle_s": 900}, "assemble": {"idle_timeout_s": 1_000}}})
    assert "gateway" in started(both)


def test_a_broker_of_the_stack_has_neither_tls_nor_sasl(settings: Settings) -> None:
    secured = settings.model_copy(update={"kafka_security_protocol": "SSL"})
    with pytest.raises(StackError, match=r"HEADRACE_KAFKA_SECURITY_PROTOCOL: set for an external Kafka, but"):
        select(PROCESSES, secured, ())
    external = secured.model_copy(update={"kafka": "broker:9093"})
    assert "kafka" not in started(external)
