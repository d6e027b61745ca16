"""What the stream processors say of themselves, through OpenTelemetry. Every name is declared here, once.

Instruments are observed: a processor keeps plain numbers, and they are read when somebody asks. Without a reader
(``deploy/processes/telemetry.py`` sets one up) nothing is ever read, and nothing costs anything. In Prometheus the
names have underscores and units: ``headrace_consumer_lag_time_seconds``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.group import Reason
from headrace.streams.assembly.runner_status import RunnerStatus
from headrace.streams.lag import Lag

METER = "headrace.streams"

Labels: TypeAlias = Mapping[str, str | int]
Samples: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]
"""Values as they are now, each with its labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A name with its unit (UCUM) and the sentence that ``/metrics`` shows beside it."""

    name: str
    """Dotted, as OpenTelemetry has it."""
    unit: str
    """``s``, ``ms``, ``By``, or ``{thing}``."""
    about: str
    """What it counts."""
    counts: bool = False
    """Whether it only grows (a counter) or comes and goes (a gauge)."""


OPEN = Metric("headrace.assembler.open", "{trajectory}", "Trajectories under way.")
OLDEST_OPEN = Metric("headrace.assembler.open.oldest", "s", "Age in log time of the one that is open longest.")
HELD_EVENTS = Metric("headrace.assembler.held", "{event}", "Events of open trajectories.")
HELD_BYTES = Metric("headrace.assembler.held.memory", "By", "Their memory.")
CLOSED = Metric("headrace.assembler.closed", "{trajectory}", "Trajectories closed.", counts=True)
NATIVE_FALLBACKS = Metric(
    "headrace.assembler.native.fallbacks",
    "{trajectory}",
    "Trajectories written by Python, because the extension module does not know an event type or a field.",
    counts=True,
)
REMEMBERED_BYTES = Metric("headrace.assembler.remembered.memory", "By", "Memory of what is known of closed ones.")
DUPLICATES = Metric("headrace.assembler.duplicates", "{event}", "Events that had come before.", counts=True)
CONFLICTS = Metric(
    "headrace.assembler.conflicts", "{event}", "Events of another run under a trajectory's id.", counts=True
)
LATE = Metric("headrace.assembler.late", "{event}", "Events that came after their trajectory was closed.", counts=True)
DEAD = Metric("headrace.assembler.dead_letters", "{record}", "Records that could not be used, by error.", counts=True)
COMMITS = Metric("headrace.assembler.commits", "{transaction}", "Transactions committed.", counts=True)
ABORTS = Metric("headrace.assembler.aborts", "{transaction}", "Transactions aborted.", counts=True)
COMMIT_TIME = Metric("headrace.assembler.commit.time", "s", "Seconds of all transactions together.", counts=True)
LAST_COMMIT_TIME = Metric("headrace.assembler.commit.last", "s", "Seconds that the latest transaction took.")
"""All by ``partition`` of `events`. Counts are since the process took the partition over."""

OPEN_GROUPS = Metric("headrace.group.open", "{group}", "Groups that wait for members.")
FATES = Metric(
    "headrace.group.fates", "{trajectory}", "Trajectories decided, by fate: trained or a reason.", counts=True
)
IGNORED = Metric(
    "headrace.group.ignored", "{reward}", "Rewards that changed nothing: repeated or revised.", counts=True
)

SET_ASIDE = Metric(
    "headrace.state.set_aside", "{entry}", "Entries of a processor's state that could not be read.", counts=True
)
"""By ``processor``."""
READ = Metric("headrace.processor.read", "{record}", "Records processed and committed.", counts=True)
WRITTEN = Metric("headrace.processor.written", "{record}", "Records written and committed.", counts=True)
"""Both by ``processor`` and ``topic``."""

LAG = Metric("headrace.consumer.lag", "{record}", "Records between a consumer group's place and the partition's end.")
LAG_TIME = Metric("headrace.consumer.lag.time", "s", "Age of the next record that a consumer group has not taken.")
"""Both by ``group``, ``topic`` and ``partition``."""


def observe(metric: Metric, samples: Samples, meter: Meter | None = None) -> None:
    """Have ``metric`` read from ``samples`` whenever it is asked for."""

    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for value, labels in samples()]

    meter = meter or get_meter(METER)
    make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
    make(metric.name, callbacks=[read], unit=metric.unit, description=metric.about)


def observe_assembler(statuses: Callable[[], Sequence[RunnerStatus]], meter: Meter | None = None) -> None:
    """The assembler's partitions, from where ``statuses`` says that they stand."""

    def per_partition(metric: Metric, value: Callable[[RunnerStatus], float]) -> None:
        observe(metric, lambda: [(value(each), {"partition": each.partition}) for each in statuses()], meter)

    def oldest_s(status: RunnerStatus) -> float:
        return 0.0 if status.oldest_open_ms is None else max(0, status.log_ms - status.oldest_open_ms) / 1000

    def dead() -> list[tuple[float, Labels]]:
        return [
            (each.dead_letters.get(error, 0), {"partition": each.partition, "error": error.value})
            for each in statuses()
            for error in DeadLetterError
        ]

    per_partition(OPEN, lambda status: status.open_trajectories)
    per_partition(OLDEST_OPEN, oldest_s)
    per_partition(HELD_EVENTS, lambda status: status.held_events)
    per_partition(HELD_BYTES, lambda status: status.held_bytes)
    per_partition(CLOSED, lambda status: status.trajectories)
    per_partition(NATIVE_FALLBACKS, lambda status: status.native_fallbacks)
    per_partition(DUPLICATES, lambda status: status.duplicates)
    per_partition(REMEMBERED_BYTES, lambda status: status.remembered_bytes)
    per_partition(CONFLICTS, lambda status: status.conflicts)
    per_partition(LATE, lambda status: status.late)
    observe(DEAD, dead, meter)
    per_partition(COMMITS, lambda status: status.commits)
    per_partition(ABORTS, lambda status: status.commits_failed)
    per_partition(COMMIT_TIME, lambda status: status.all_commits_s)
    per_partition(LAST_COMMIT_TIME, lambda status: status.last_commit_s)


class Grouping(Protocol):
    """What of the group worker is observed."""

    @property
    def open_groups(self) -> int:
        """Groups that wait for members."""

    @property
    def fates(self) -> Mapping[str, int]:
        """Trajectories decided, by fate."""

    @property
    def ignored(self) -> int:
        """Rewards that changed nothing."""


def observe_groups(grouping: Grouping, meter: Meter | None = None) -> None:
    """What group holds and has decided since its process started."""
    observe(OPEN_GROUPS, lambda: [(grouping.open_groups, {})], meter)

    def fates() -> list[tuple[float, Labels]]:
        counts = dict.fromkeys(("trained", *map(str, Reason)), 0) | dict(grouping.fates)
        return [(count, {"fate": fate}) for fate, count in counts.items()]

    observe(FATES, fates, meter)
    observe(IGNORED, lambda: [(grouping.ignored, {})], meter)


class Processing(Protocol):
    """What of a processor is observed."""

    @property
    def set_aside(self) -> int:
        """Entries of its state that could not be read."""

    @property
    def read(self) -> Mapping[str, int]:
        """Records processed, by topic."""

    @property
    def written(self) -> Mapping[str, int]:
        """Records written, by topic."""


def observe_processor(name: str, processing: Processing, meter: Meter | None = None) -> None:
    """What ``name`` has read, written and set aside since its process started."""

    def by_topic(counts: Mapping[str, int]) -> list[tuple[float, Labels]]:
        return [(count, {"processor": name, "topic": topic}) for topic, count in counts.items()]

    observe(SET_ASIDE, lambda: [(processing.set_aside, {"processor": name})], meter)
    observe(READ, lambda: by_topic(processing.read), meter)
    observe(WRITTEN, lambda: by_topic(processing.written), meter)


def observe_lag(latest: Callable[[], Sequence[Lag]], meter: Meter | None = None) -> None:
    """Lag of consumer groups, from the measurement that ``latest`` returns."""

    def labels(lag: Lag) -> Labels:
        return {"group": lag.group, "topic": lag.topic, "partition": lag.partition}

    observe(LAG, lambda: [(lag.records, labels(lag)) for lag in latest()], meter)
    observe(LAG_TIME, lambda: [(lag.seconds, labels(lag)) for lag in latest()], meter)
