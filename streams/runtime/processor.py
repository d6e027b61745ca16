"""A processor: what it reads and writes, and the operator that works on each of its partitions.

    record ──process──▶ operator ──flush──▶ Effects: records for other topics, changes of its state
    stream time ──advance──▲

An operator is a fold: it has no clock, no client and no I/O, and its effects follow from its input. The same
operator runs live, in ``drive`` and in a replay, under the same :class:`~headrace.streams.runtime.runtime.Runtime`;
only what makes its effects durable differs. What a fold cannot do, such as calling a judge, is the processor's hook.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.topics import Topic
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.runtime.state import SetAside

R = TypeVar("R")
"""Type of the rules that processors follow."""


@dataclass(slots=True)
class Effects:
    """What some records, or passing stream time, caused. Committed together with the offsets after those records."""

    outgoing: list[Outgoing] = field(default_factory=list)
    """Records to write, in order."""
    state: dict[bytes, bytes | None] = field(default_factory=dict)
    """State changes by key; ``None`` deletes the entry."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts by name, for metrics; added once the effects are committed."""

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.outgoing or self.state)


class Operator(ABC):
    """One partition of a processor: a fold over its records and over stream time (Unix milliseconds)."""

    newest_ms: int = 0
    """Newest stream time in the state that it was restored from; 0 if there is none."""

    @abstractmethod
    def process(self, record: LogRecord) -> None:
        """Fold the next record.

        Raises ``UnreadableRecord`` for a record that becomes a dead letter. Any other exception makes a dead letter
        and an alert, and must leave the operator unchanged.
        """

    @abstractmethod
    def flush(self) -> Effects:
        """The effects since the last call."""

    @property
    def waits(self) -> bool:
        """Whether anything waits for stream time."""
        return False

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`advance` to ``now_ms`` has work to do."""
        return False

    def advance(self, now_ms: int, at_most: int) -> None:  # noqa: B027  # most operators wait for nothing
        """Advance stream time to ``now_ms``. If much is due, about ``at_most`` pieces of work are done per call."""

    @property
    def limits_reached(self) -> Counter[str]:
        """How often a limit was reached since the start, by name, for the log."""
        return Counter()


@dataclass(frozen=True, slots=True)
class Start:
    """What an operator is restored from."""

    stored: Mapping[bytes, LogRecord] = field(default_factory=dict)
    """State by key, in the order in which it was written last."""
    partitions: Mapping[Topic, int] = field(default_factory=dict)
    """Number of partitions by topic; 1 for a topic that is not named."""
    outages: bool = False
    """Whether Kafka may be unavailable at times, so that a gap in stream time must not count in full."""


class Hook(Protocol):
    """The work of a processor between folding and flushing that needs I/O."""

    async def complete(self, operators: Mapping[int, Any]) -> None:
        """Complete what the operators (by partition) have begun, before they are flushed. If it raises, nothing is
        committed.
        """


class PartitionsRevoked(Exception):
    """Partitions were revoked; the new owner reprocesses the uncommitted batch."""


ReadBack: TypeAlias = Callable[[Topic, Collection[Place]], Awaitable[Mapping[Place, LogRecord]]]
"""Returns the records of a topic at some offsets; deleted ones are omitted."""
Ask: TypeAlias = Callable[[Sequence[Any]], Awaitable[list[Any]]]
"""Returns the answers to questions, in order. Raises :class:`PartitionsRevoked` if it would delay a rebalance."""


@dataclass(frozen=True, slots=True)
class Outside:
    """I/O that hooks may use."""

    read_back: ReadBack
    """Reads records back."""
    ask: Ask | None = None
    """Calls judges; ``None``: no judge is called, and judged components are ``not_judged``."""
    batch: int = 500
    """Number of records that are read back, and of trajectories that are judged, at a time."""


@dataclass(frozen=True, slots=True)
class Processor(Generic[R]):
    """A node of the topology."""

    name: str
    """Stable name: it is in consumer groups, metrics and the drawing."""
    reads: tuple[Topic, ...]
    """Input topics, all with the same number of partitions, as its state has: partition p of all of them is one
    operator's."""
    run: Callable[..., Any]
    """The pure function at its heart. Its annotations name the records of ``reads`` and ``writes``."""
    writes: tuple[Topic, ...]
    """Output topics."""
    about: str
    """Its purpose, in one sentence."""
    restore: Callable[[R, Start], tuple[Operator, list[SetAside]]]
    """Restores the operator of a partition, and returns the state entries that cannot be read."""
    state: str = "Only its committed offsets."
    """Contents of its state topic, in one sentence."""
    hook: Callable[[R, Outside], Hook] | None = None
    """Makes its hook."""
    ticks: tuple[Topic, ...] = ()
    """Topics to whose silent partitions its process writes ticks, which advance stream time."""
    hears: Callable[[R], tuple[Topic, ...]] | None = None
    """Which of ``reads`` it needs under the given rules; ``None``: all."""
    optional: tuple[Topic, ...] = ()
    """Those of ``reads`` without which it works too, and says less. A replay that lacks them runs it anyway."""

    def __post_init__(self) -> None:
        counts = {topic.name: topic.partitions for topic in self.reads}
        if len(set(counts.values())) != 1:
            read = ", ".join(f"{name} with {count}" for name, count in counts.items()) or "no topic"
            raise ValueError(
                f"processor {self.name!r} reads {read}: it needs topics with the same number of partitions, because "
                "one operator gets partition p of all of them. Have another processor copy what it needs of the "
                "others into a topic with as many."
            )

    @property
    def source(self) -> str:
        """``ce_source`` of its outputs."""
        return f"/streams/{self.name}"

    def inputs(self, rules: R) -> tuple[Topic, ...]:
        """Topics that it reads under ``rules``."""
        return self.reads if self.hears is None else self.hears(rules)
