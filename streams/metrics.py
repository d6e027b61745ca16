"""Metrics of the stream processors, through OpenTelemetry. Every name is declared here, once.

Instruments are observable: a processor keeps plain numbers, which are read on collection. Without a metric reader
(``deploy/processes/telemetry.py`` sets one up) nothing is read and nothing costs time. In Prometheus the names have
underscores and units: ``headrace_consumer_lag_time_seconds``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.group import Reason
from headrace.streams.assembly.runner_status import RunnerStatus
from headrace.streams.lag import ConsumerLag

METER = "headrace.streams"

Labels: TypeAlias = Mapping[str, str | int]
Samples: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]
"""Returns the current values, each with its labels."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """Name, unit (UCUM) and description of a metric, as shown in ``/metrics``."""

    name: str
    """Dotted name, as in OpenTelemetry."""
    unit: str
    """``s``, ``ms``, ``By``, or ``{thing}``."""
    about: str
    """Description."""
    counts: bool = False
    """Whether it is a counter; otherwise it is a gauge."""


OPEN = Instrument("headrace.assembler.open", "{trajectory}", "Open trajectories.")
OLDEST_OPEN = Instrument("headrace.assembler.open.oldest", "s", "Age of the oldest open trajectory in stream time.")
HELD_EVENTS = Instrument("headrace.assembler.held", "{event}", "Events of open trajectories.")
HELD_BYTES = Instrument("headrace.assembler.held.memory", "By", "Memory of open trajectories.")
CLOSED = Instrument("headrace.assembler.closed", "{trajectory}", "Trajectories closed.", counts=True)
NATIVE_FALLBACKS = Instrument(
    "headrace.assembler.native.fallbacks",
    "{trajectory}",
    "Trajectories written by Python, because the extension module does not know an event type or a field.",
    counts=True,
)
REMEMBERED_BYTES = Instrument("headrace.assembler.remembered.memory", "By", "Memory of remembered closed trajectories.")
DUPLICATES = Instrument("headrace.assembler.duplicates", "{event}", "Duplicate events.", counts=True)
CONFLICTS = Instrument(
    "headrace.assembler.conflicts", "{event}", "Events of another run with the same trajectory id.", counts=True
)
LATE = Instrument(
    "headrace.assembler.late", "{event}", "Events that arrived after their trajectory was closed.", counts=True
)
DEAD = Instrument(
    "headrace.assembler.dead_letters", "{record}", "Records that could not be used, by error.", counts=True
)
COMMITS = Instrument("headrace.assembler.commits", "{transaction}", "Transactions committed.", counts=True)
ABORTS = Instrument("headrace.assembler.aborts", "{transaction}", "Transactions aborted.", counts=True)
COMMIT_TIME = Instrument("headrace.assembler.commit.time", "s", "Total seconds of all transactions.", counts=True)
LAST_COMMIT_TIME = Instrument("headrace.assembler.commit.last", "s", "Seconds of the latest transaction.")
"""All by ``partition`` of `events`. Counts start when the process acquires the partition."""

OPEN_GROUPS = Instrument("headrace.group.open", "{group}", "Groups that wait for members.")
FATES = Instrument(
    "headrace.group.fates", "{trajectory}", "Trajectories decided, by fate: trained or a reason.", counts=True
)
IGNORED = Instrument("headrace.group.ignored", "{reward}", "Rewards without effect: repeated or revised.", counts=True)

SET_ASIDE = Instrument(
    "headrace.state.set_aside", "{entry}", "Entries of a processor's state that could not be read.", counts=True
)
"""By ``processor``."""
READ = Instrument("headrace.processor.read", "{record}", "Records processed and committed.", counts=True)
WRITTEN = Instrument("headrace.processor.written", "{record}", "Records written and committed.", counts=True)
"""Both by ``processor`` and ``topic``."""

LAG = Instrument("headrace.consumer.lag", "{record}", "Records between a consumer group's position and the log end.")
LAG_TIME = Instrument(
    "headrace.consumer.lag.time", "s", "Age of the next record that a consumer group has not processed."
)
"""Both by ``group``, ``topic`` and ``partition``."""


def observe(metric: Instrument, samples: Samples, meter: Meter | None = None) -> None:
    """Register ``metric``; its values are read from ``samples`` on collection."""

    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for value, labels in samples()]

    meter = meter or get_meter(METER)
    make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
    make(metric.name, callbacks=[read], unit=metric.unit, description=metric.about)


def observe_assembler(statuses: Callable[[], Sequence[RunnerStatus]], meter: Meter | None = None) -> None:
    """Register the metrics of the assembler's partitions, read from ``statuses``."""

    def per_partition(metric: Instrument, value: Callable[[RunnerStatus], float]) -> None:
        observe(metric, lambda: [(value(each), {"partition": each.partition}) for each in statuses()], meter)

    def oldest_s(status: RunnerStatus) -> float:
        return 0.0 if status.oldest_open_ms is None else max(0, status.stream_ms - status.oldest_open_ms) / 1000

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
    """Observed values of the group processor."""

    @property
    def open_groups(self) -> int:
        """Groups that wait for members."""

    @property
    def fates(self) -> Mapping[str, int]:
        """Trajectories decided, by fate."""

    @property
    def ignored(self) -> int:
        """Rewards without effect."""


def observe_groups(grouping: Grouping, meter: Meter | None = None) -> None:
    """Register the metrics of group: open groups, and decisions since its process started."""
    observe(OPEN_GROUPS, lambda: [(grouping.open_groups, {})], meter)

    def fates() -> list[tuple[float, Labels]]:
        counts = dict.fromkeys(("trained", *map(str, Reason)), 0) | dict(grouping.fates)
        return [(count, {"fate": fate}) for fate, count in counts.items()]

    observe(FATES, fates, meter)
    observe(IGNORED, lambda: [(grouping.ignored, {})], meter)


class Processing(Protocol):
    """Observed values of a processor."""

    @property
    def set_aside(self) -> int:
        """Entries of its state that could not be read."""

    @property
    def read(self) -> Mapping[str, int]:
        """Records processed, by topic."""

    @property
    def written(self) -> Mapping[str, int]:
        """Records written, by topic."""


def observe_processors(processors: Mapping[str, Processing], meter: Meter | None = None) -> None:
    """Register the counts of records read and written, and of state entries quarantined, by each of ``processors``.

    Call it once per process: OpenTelemetry ignores a second instrument of the same name.
    """

    def by_topic(counts_of: Callable[[Processing], Mapping[str, int]]) -> list[tuple[float, Labels]]:
        return [
            (count, {"processor": name, "topic": topic})
            for name, each in processors.items()
            for topic, count in counts_of(each).items()
        ]

    observe(SET_ASIDE, lambda: [(each.set_aside, {"processor": name}) for name, each in processors.items()], meter)
    observe(READ, lambda: by_topic(lambda each: each.read), meter)
    observe(WRITTEN, lambda: by_topic(lambda each: each.written), meter)


def observe_lag(latest: Callable[[], Sequence[ConsumerLag]], meter: Meter | None = None) -> None:
    """Register the lag of consumer groups, read from the measurement that ``latest`` returns."""

    def labels(lag: ConsumerLag) -> Labels:
        return {"group": lag.group, "topic": lag.topic, "partition": lag.partition}

    observe(LAG, lambda: [(lag.records, labels(lag)) for lag in latest()], meter)
    observe(LAG_TIME, lambda: [(lag.seconds, labels(lag)) for lag in latest()], meter)
