"""The processes as values: what is derived from them, and that an added process appears everywhere."""

import json
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.deploy.configuration.settings import Settings, configured
from headrace.deploy.processes import registry
from headrace.deploy.processes.process import Process, ReportStatus
from headrace.deploy.processes.registry import PROCESSES, configurations, stack_processes, workers
from headrace.deploy.processes.streams import ASSEMBLE, GROUP, SCORE, STREAMS, WORKERS
from headrace.deploy.stack.stack import running_stack
from headrace.deploy.system.children import Command
from headrace.schemas.topics import EVENTS, FEEDBACK, SDK_STATS, TOPICS
from headrace.streams.clickhouse.tables import STORED_TOPICS
from headrace.streams.topology import TOPOLOGY
from tests.deploy.conftest import SERVE, python


def test_every_process_comes_after_what_it_needs() -> None:
    names = [process.name for process in PROCESSES]
    assert len(set(names)) == len(names)
    for index, process in enumerate(PROCESSES):
        assert set(process.needs) <= set(names[:index]), process.name


def test_every_process_can_be_started() -> None:
    for process in PROCESSES:
        assert process.run is not None or process.command is not None, process.name
        assert process.in_stack or process.run is not None, process.name


def test_every_setting_and_class_of_a_process_exists() -> None:
    for process in PROCESSES:
        own_address = {process.name} if process.external else set()
        assert {*process.settings, *process.ports, *own_address} <= set(Settings.model_fields), process.name
        assert set(process.needs) <= {each.name for each in stack_processes()}, process.name
    for name, configuration in configurations().items():
        module, _, class_name = configuration.partition(":")
        assert hasattr(import_module(module), class_name), name


def test_every_topic_is_written_by_a_process_or_by_agents_and_read_by_one_if_it_has_a_table() -> None:
    flows = {process.name: process.flow() for process in PROCESSES}
    by_agents = {EVENTS, FEEDBACK, SDK_STATS}
    for name in ("gateway", "otlp"):  # write for agents
        assert {*flows.pop(name).writes} <= by_agents
    ticks = {topic for processor in TOPOLOGY for topic in processor.ticks}
    assert {topic for flow in flows.values() for topic in flow.writes} - ticks == {*TOPICS} - by_agents
    assert {*flows["sink"].reads} == {topic for topic in TOPICS if topic in STORED_TOPICS}
    for process in PROCESSES:
        if process.name in flows:
            of_kafka = process.run is not None and "kafka" in process.settings
            assert bool(flows[process.name].reads) == of_kafka, process.name


def test_a_worker_has_the_topics_of_its_processors() -> None:
    assert ASSEMBLE.flow().reads == (EVENTS,)
    assert {*SCORE.flow().topics, *GROUP.flow().topics} <= {*WORKERS.flow().topics}
    assert {*STREAMS.flow().topics} == {*ASSEMBLE.flow().topics, *WORKERS.flow().topics}


def test_the_options_of_every_process_are_shown() -> None:
    assert {process.name for process in PROCESSES if process.configure} == set(configurations())
    assert set(configurations()) <= {*workers(), "vllm"}


@dataclass(frozen=True)
class DriftConfig:
    """Options of the drift monitor in these tests."""

    window: int = 10
    """Number of rewards in a mean."""


async def _drift_command(settings: Settings, report: ReportStatus) -> Command:
    return python(SERVE)


def _run_drift(settings: Settings) -> int:
    print(f"drift runs on {settings.required_address('kafka')}")
    return 3


DRIFT = Process(
    "drift",
    "rewards → a mean over time",
    run=_run_drift,
    command=_drift_command,
    settings=("kafka",),
    ports=("dashboard_port",),  # a port of its own would need a field of Settings
    url="http://127.0.0.1:{port}",
    configuration=f"{__name__}:DriftConfig",
    configure=lambda settings: configured(settings, "drift", DriftConfig),
    memory_mb=1,
)


@pytest.fixture
def with_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a process, and import the commands after that."""
    monkeypatch.setattr(registry, "PROCESSES", (*PROCESSES, DRIFT))
    for name in ("up", "worker", "status", "settings"):
        monkeypatch.delitem(sys.modules, f"headrace.deploy.commands.{name}", raising=False)


def headrace(*arguments: str) -> str:
    from headrace.deploy.cli import cli

    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"}).output


@pytest.mark.usefixtures("with_drift")
def test_an_added_process_is_in_every_help_text() -> None:
    assert "dashboard, drift." in " ".join(headrace("up", "--help").split())
    # The widths of the columns follow from all processes.
    assert re.search(
        r"^ +drift +rewards → a mean over time +HEADRACE_KAFKA$", headrace("worker", "--help"), re.MULTILINE
    )
    assert "drift" in headrace("settings", "--help")


@pytest.mark.usefixtures("with_drift")
def test_an_added_process_can_be_left_out_and_its_options_are_checked(tmp_path: Path) -> None:
    nothing_else = ",".join(process.name for process in stack_processes() if process is not DRIFT)
    up = ("up", "--data", str(tmp_path), "--without")
    assert "follower needs vllm" in headrace(*up, "drift,vllm"), "drift is known: what is wrong is something else"
    assert "drift (--set, HEADRACE_OPTIONS): there is no option widow. Did you mean window?" in headrace(
        *up, nothing_else, "--set", "drift.widow=1"
    )


@pytest.mark.usefixtures("with_drift")
def test_an_added_process_has_a_page_of_settings() -> None:
    assert "window" in headrace("settings", "drift")
    assert "Number of rewards in a mean." in headrace("settings", "drift", "--toml")


@pytest.mark.usefixtures("with_drift")
def test_an_added_process_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.deploy.processes import worker

    monkeypatch.setattr(worker, "keep_files_private", lambda: None)  # keeps the umask of the test's process
    monkeypatch.setattr(worker, "log_to_stderr", lambda level: None)
    assert headrace("worker", "drift", "--kafka", "broker:9092") == "drift runs on broker:9092\n"


@pytest.mark.usefixtures("with_drift")
async def test_an_added_process_is_started_with_the_stack_and_shown_by_status(settings: Settings) -> None:
    nothing_else = [process.name for process in stack_processes() if process is not DRIFT]
    async with running_stack(settings, nothing_else):
        shown = headrace("status", "--data", str(settings.data))
        listed = json.loads(headrace("status", "--data", str(settings.data), "--json"))
    assert "drift       ready" in shown
    assert listed["drift"] == listed["parts"]["drift"]["address"]
    assert listed["drift"].startswith("http://127.0.0.1:")
    assert listed["dashboard"] is None
