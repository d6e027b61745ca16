"""Metrics by their published names."""

from types import SimpleNamespace

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.group import Reason
from headrace.streams.assembly.runner_status import RunnerStatus
from headrace.streams.lag import ConsumerLag
from headrace.streams.metrics import METER, observe_assembler, observe_groups, observe_lag, observe_processors


def read(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, object], float]]]:
    """Every metric: name → (labels, value)."""
    data = reader.get_metrics_data()
    return {
        metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


STATUS = RunnerStatus(
    partition=3, position=10, log_end=12, stream_ms=9_000, open_trajectories=2, oldest_open_ms=4_000, held_events=7,
    held_bytes=900, remembered_bytes=300, duplicates=1, trajectories=5, commits=4,
    native_fallbacks=2,
    dead_letters={DeadLetterError.LATE: 2, DeadLetterError.BAD_JSON: 1, DeadLetterError.CONFLICT: 4},
    commits_failed=1, last_commit_s=0.02, all_commits_s=0.1,
)  # fmt: skip


def test_the_assembler_reports_state_and_work_by_partition() -> None:
    reader = InMemoryMetricReader()
    observe_assembler(lambda: [STATUS], MeterProvider([reader]).get_meter(METER))
    found = read(reader)
    dead = found.pop("headrace.assembler.dead_letters")
    counts = {labels["error"]: value for labels, value in dead}
    assert counts == dict.fromkeys(DeadLetterError, 0) | {"late": 2, "bad_json": 1, "conflict": 4}
    assert {name.removeprefix("headrace.assembler."): value for name, ((_, value),) in found.items()} == {
        "open": 2, "open.oldest": 5.0, "held": 7, "held.memory": 900, "remembered.memory": 300, "closed": 5,
        "native.fallbacks": 2,
        "duplicates": 1, "conflicts": 4, "late": 2,
        "commits": 4, "aborts": 1, "commit.time": 0.1, "commit.last": 0.02,
    }  # fmt: skip
    assert {labels["partition"] for ((labels, _),) in found.values()} == {3}


def test_group_reports_fates_of_trajectories() -> None:
    grouping = SimpleNamespace(open_groups=3, fates={"trained": 8, "stale": 1}, ignored=2)
    reader = InMemoryMetricReader()
    observe_groups(grouping, MeterProvider([reader]).get_meter(METER))
    assert read(reader) == {
        "headrace.group.open": [({}, 3)],
        "headrace.group.fates": [
            ({"fate": fate}, {"trained": 8, "stale": 1}.get(fate, 0)) for fate in ("trained", *Reason)
        ],
        "headrace.group.ignored": [({}, 2)],
    }


def test_records_and_commits_of_every_processor_of_a_process_are_counted() -> None:
    score = SimpleNamespace(set_aside=0, read={"trajectories": 0, "feedback": 0}, written={"rewards": 0})
    group = SimpleNamespace(set_aside=1, read={"rewards": 2}, written={"training": 1})
    reader = InMemoryMetricReader()
    observe_processors({"score": score, "group": group}, MeterProvider([reader]).get_meter(METER))

    def expected(set_aside: int, read: int, written: int) -> dict[str, object]:
        topic, of_group = {"processor": "score", "topic": "trajectories"}, {"processor": "group", "topic": "rewards"}
        return {
            "headrace.state.set_aside": [({"processor": "score"}, set_aside), ({"processor": "group"}, 1)],
            "headrace.processor.read": [(topic, read), (topic | {"topic": "feedback"}, 0), (of_group, 2)],
            "headrace.processor.written": [
                (topic | {"topic": "rewards"}, written),
                (of_group | {"topic": "training"}, 1),
            ],
        }

    assert read(reader) == expected(0, 0, 0)
    score.set_aside, score.read["trajectories"], score.written["rewards"] = 3, 5, 4
    assert read(reader) == expected(3, 5, 4)


def test_lag_is_read_at_every_observation() -> None:
    reader = InMemoryMetricReader()
    latest = [ConsumerLag("assemble", "events", 2, 1840, 0.5)]
    observe_lag(lambda: latest, MeterProvider([reader]).get_meter(METER))
    labels = {"group": "assemble", "topic": "events", "partition": 2}
    assert read(reader) == {"headrace.consumer.lag": [(labels, 1840)], "headrace.consumer.lag.time": [(labels, 0.5)]}
    latest[:] = []
    assert not any(read(reader).values())
