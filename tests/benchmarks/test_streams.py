"""The benchmark programs run on small loads, and the peers do the same work as ours."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import bench_policy, latency, readers, remembered, report, throughput, whole_path
from tests.benchmarks.flow import SIZE, schedule
from tests.benchmarks.load import EVENTS_EACH
from tests.benchmarks.peers import CONTENDERS, quix_python
from tests.benchmarks.streams import FIGURES, MEASUREMENTS, TABLE, half_load, machine, write

TRAJECTORIES = 400
SAMPLE = {"count": 600, "wall_s": 2.0, "cpu_s": 1.5, "broker_cpu_s": 0.3, "memory_mb": 90.0}

ABOUT = {"machine": machine(), "date": "2026-11-21", "command": "pytest", "took_s": 1}


def test_a_schedule_takes_every_step_of_every_item_in_order() -> None:
    seen: dict[int, list[int]] = {}
    for number, step in schedule(50, 4, open_at_a_time=12):
        seen.setdefault(number, []).append(step)
    assert seen == {number: [0, 1, 2, 3] for number in range(50)}


def test_a_schedule_keeps_the_given_number_open() -> None:
    open_now, most = set[int](), 0
    for number, step in schedule(200, 4, open_at_a_time=12):
        open_now.add(number)
        most = max(most, len(open_now))
        if step == 3:
            open_now.remove(number)
    assert most in (12, 13)


def test_half_load_is_half_of_the_rate_of_the_whole_path() -> None:
    figures = {"whole_path": {"trajectories": 600, "samples": [{"wall_s": 4.0}, {"wall_s": 2.0}, {"wall_s": 9.0}]}}
    assert half_load(figures) == 600 / 4.0 * EVENTS_EACH / 2


def test_latency_without_a_known_load_names_the_measurements_to_run_first() -> None:
    with pytest.raises(ValueError, match="measure 'whole_path' first"):
        half_load({})


@pytest.mark.kafka
@pytest.mark.nightly
async def test_peers_write_as_many_trajectories_as_ours(tmp_path: Path) -> None:
    chosen = [one for one in CONTENDERS if one.name in ("headrace", "kafka-streams", "quix", "bare-aiokafka")]
    try:
        quix_python()
    except RuntimeError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"Quix Streams cannot be installed here: {error}")
    # It raises if a contender writes another number of trajectories than the log has.
    figures = await throughput.measure(
        TRAJECTORIES, 1, print, [replace(one, share=1.0, counted=one.writes) for one in chosen]
    )
    assert {name: len(samples) for name, samples in figures["samples"].items()} == {one.name: 1 for one in chosen}

    write({"throughput": figures | {"about": ABOUT}}, tmp_path)
    assert all(one.title in (tmp_path / TABLE).read_text() for one in chosen)
    assert json.loads((tmp_path / FIGURES).read_text())["throughput"]["events"] == TRAJECTORIES * EVENTS_EACH
    assert (tmp_path / "throughput.png").stat().st_size > 10_000


@pytest.mark.kafka
@pytest.mark.clickhouse
@pytest.mark.nightly
async def test_every_group_of_the_flow_arrives_and_has_its_latency(tmp_path: Path) -> None:
    figures = await latency.measure(4000, 3, print)
    assert {len(seconds) for seconds in figures["latencies_s"].values()} == {4000 * 3 / EVENTS_EACH / SIZE}
    assert set(figures["cores"]) == {"assemble", "score", "group", "sink", "clickhouse", "broker"}
    write({"latency": figures | {"about": ABOUT}}, tmp_path)
    assert all(f"| to the {end} | " in (tmp_path / TABLE).read_text() for end in latency.ENDS.values())
    assert (tmp_path / "latency.png").stat().st_size > 10_000


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_the_whole_path_is_walked_and_every_process_has_its_share() -> None:
    figures = await whole_path.measure(400, 1, print)
    (one,) = figures["samples"]
    assert one["us_per_event"].keys() == one["memory_mb"].keys() == whole_path.TITLES.keys()
    assert all(us > 0 for us in one["us_per_event"].values())
    page = report.whole_path(figures | {"about": ABOUT})
    assert all(f"| {title} | " in page for title in (*whole_path.TITLES.values(), "all but the broker"))


def test_a_checkout_from_before_has_its_columns_and_its_share() -> None:
    def sample(us: float, generator_us: float) -> dict[str, Any]:
        return {
            "us_per_event": dict.fromkeys(whole_path.TITLES, us),
            "generator_us": generator_us,
            "memory_mb": dict.fromkeys(whole_path.TITLES, 1.0),
            "wall_s": 1.0,
        }

    now, before = sample(2.0, 10.0), sample(8.0, 5.0)  # the machine was half as fast now
    figures = {"trajectories": 1, "titles": whole_path.TITLES, "samples": [now], "before": [before]}
    page = report.whole_path(figures | {"about": ABOUT})
    assert "| all but the broker | 8.0 µs | 32.0 µs | 0.25 |" in page
    assert "| the generator | 10.0 µs | 5.0 µs | 2.00 |" in page
    assert "| all but the broker, in generators | 0.8 | 6.4 | 0.12 |" in page


def test_figures_of_a_path_from_before_the_generator_was_measured_are_shown() -> None:
    """Whatever is measured, the page is written with the previous figures of the rest."""
    kept = json.loads((Path(report.__file__).parent / "results" / FIGURES).read_text())["whole_path"]
    for each in (*kept["samples"], *kept.get("before", [])):
        each.pop("generator_us", None)
    page = report.whole_path(kept)
    assert "| all but the broker |" in page
    assert "enerator" not in page


@pytest.mark.kafka
@pytest.mark.clickhouse
@pytest.mark.nightly
async def test_the_processes_of_a_checkout_walk_the_whole_path_and_create_their_tables() -> None:
    figures = await whole_path.measure(400, 1, print, before=Path(__file__).parents[2])
    (one,) = figures["before"]
    assert all(us > 0 for us in one["us_per_event"].values())


@pytest.mark.kafka
@pytest.mark.nightly
async def test_commands_that_read_the_log_are_timed() -> None:
    figures = await readers.measure(400, print)
    assert figures["samples"].keys() == readers.COMMANDS.keys()
    assert "| `headrace ledger` | " in report.readers(figures | {"about": ABOUT})


@pytest.mark.kafka
@pytest.mark.nightly
async def test_a_restart_reads_remembered_trajectories_and_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "SIZES_KB", (8,))
    figures = await remembered.measure(60, 1, print)
    (measured,) = figures["sizes"].values()
    assert 60 * 8 * 1024 < measured["bytes"] < 70 * 10 * 1024
    assert measured["seconds"][0] > 0
    assert "| 8 KB | " in report.remembered(figures | {"about": ABOUT})


def test_every_measurement_has_a_section_on_the_page() -> None:
    from tests.benchmarks.report import SECTIONS

    assert list(SECTIONS) == list(MEASUREMENTS)


def test_a_peer_that_finished_before_the_first_sample_is_not_measured() -> None:
    took = {"wall_s": 1.0, "cpu_s": 1.0, "broker_cpu_s": 1.0, "memory_mb": 1.0}
    samples = {"headrace": [took | {"count": 10}], "bare-aiokafka": [took | {"count": 0}]}
    about = {"machine": machine(), "date": "2026-11-21", "command": "c", "took_s": 1}
    figures = {"events": 10, "bytes_an_event": 600, "open": 1, "titles": {name: name for name in samples}}
    page = report.throughput(figures | {"samples": samples, "about": about})
    assert "| bare-aiokafka | 0.0 | 0.0 | not measured | not measured |" in page


def test_a_ratio_is_given_with_its_interval_and_only_for_enough_rounds() -> None:
    rates = [100.0, 120.0, 90.0, 110.0, 105.0, 95.0, 100.0, 130.0, 80.0, 100.0, 101.0, 99.0]
    one = [SAMPLE | {"count": rate, "wall_s": 1.0} for rate in rates]
    four = [SAMPLE | {"count": 3 * rate, "wall_s": 1.0} for rate in rates]
    assert report.scaling(one[:11], four, "four") == ""
    said = report.scaling(one, four, "four")
    assert said.startswith(" Four headrace processes do 3.0 × the work of one (95 % interval ")
    low, high = map(float, said.rpartition("interval ")[2].rstrip(").").split("–"))
    assert 2.5 < low < 3.0 < high < 3.5


def test_the_policy_clients_program_runs() -> None:
    found = bench_policy.run(requests=20, in_flight=4, rounds=1)
    assert found.keys() == {"policy client", "httpx"}
    assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in found.values())
    assert "ms a request" in bench_policy.table(found)
