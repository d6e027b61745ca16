"""A processor: what it reads and writes, and the operator that works on each of its partitions.

    record ──process──▶ operator ──flush──▶ Effects: records for other topics, changes of its state
    stream time ──advance──▲

An operator is a fold: it has no clock, no client and no I/O, and its effects follow from what it was given. The same
operator runs live, in ``drive`` and in a replay, under the same :class:`~headrace.streams.runtime.runtime.Runtime`;
only what makes its effects durable differs. What a fold cannot do by itself, such as asking a judge, is the
processor's hook.
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
"""Type of the rules that processors go by."""


@dataclass(slots=True)
class Effects:
    """What some records, or some stream time, did. Committed together with the offsets behind those records."""

    outgoing: list[Outgoing] = field(default_factory=list)
    """Records to write, in order."""
    state: dict[bytes, bytes | None] = field(default_factory=dict)
    """What to store by key; ``None`` forgets it."""
    counts: Counter[str] = field(default_factory=Counter)
    """What happened, by name, for metrics: counted once the effects are committed."""

    def __bool__(self) -> bool:
        """Whether anything is to be written."""
        return bool(self.outgoing or self.state)


class Operator(ABC):
    """One partition of a processor: a fold over its records and over stream time (Unix milliseconds)."""

    newest_ms: int = 0
    """Newest stream time in the state that it was restored from; 0 where there is none."""

    @abstractmethod
    def process(self, record: LogRecord) -> None:
        """Fold the next record.

        Raises ``UnreadableRecord`` for one that becomes a dead letter. Whatever else it raises makes a dead letter and
        an alert, and must leave the operator as it was.
        """

    @abstractmethod
    def flush(self) -> Effects:
        """What has been done since the last call."""

    @property
    def waits(self) -> bool:
        """Whether anything waits for stream time."""
        return False

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`advance` to ``now_ms`` has something left to do."""
        return False

    def advance(self, now_ms: int, at_most: int) -> None:  # noqa: B027  # most operators wait for nothing
        """Stream time is ``now_ms``. Where that makes much work, about ``at_most`` pieces of it are done at a time."""

    @property
    def limits_reached(self) -> Counter[str]:
        """How often a limit was reached since the start, by name, for the log."""
        return Counter()


@dataclass(frozen=True, slots=True)
class Start:
    """From where an operator goes on."""

    stored: Mapping[bytes, LogRecord] = field(default_factory=dict)
    """State by key, in the order in which it was written last."""
    partitions: Mapping[Topic, int] = field(default_factory=dict)
    """How many partitions topics have; one where a topic is not named."""
    outages: bool = False
    """Whether Kafka may be away in between, so that a gap in stream time must not count in full."""


class Hook(Protocol):
    """What a processor does between its folds and their effects that no fold can do."""

    async def complete(self, operators: Mapping[int, Any]) -> None:
        """Complete what the operators (by partition) have begun, before they are flushed. Where it raises, nothing is
        committed.
        """


class PartitionsRevoked(Exception):
    """Partitions were revoked; the new owner reprocesses the uncommitted batch."""


ReadBack: TypeAlias = Callable[[Topic, Collection[Place]], Awaitable[Mapping[Place, LogRecord]]]
"""Gives the records of a topic at some places; those that are gone are left out."""
Ask: TypeAlias = Callable[[Sequence[Any]], Awaitable[list[Any]]]
"""Gives the answers to questions, in order. Raises :class:`PartitionsRevoked` where it would hold up a rebalance."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What hooks may ask of the world."""

    read_back: ReadBack
    """Reads records again."""
    ask: Ask | None = None
    """Asks judges; ``None``: nobody does, and judged components are ``not_judged``."""
    batch: int = 500
    """Records that are read back, and trajectories that are judged, at a time."""


@dataclass(frozen=True, slots=True)
class Processor(Generic[R]):
    """A node of the topology."""

    name: str
    """Stable name: it is in consumer groups, metrics and the drawing."""
    reads: tuple[Topic, ...]
    """Topics whose records it takes; the first one's partitions are those of its state."""
    run: Callable[..., Any]
    """The pure function at its heart. Its annotations name the records of ``reads`` and ``writes``."""
    writes: tuple[Topic, ...]
    """Topics that its results go to."""
    about: str
    """What it does, in a sentence."""
    restore: Callable[[R, Start], tuple[Operator, list[SetAside]]]
    """Makes the operator of a partition, and names what of its state cannot be read."""
    state: str = "Nothing but how far it got."
    """What its state topic holds, in a sentence."""
    hook: Callable[[R, Outside], Hook] | None = None
    """Makes what completes its folds."""
    hears: Callable[[R], tuple[Topic, ...]] | None = None
    """Which of ``reads`` it has a use for under given rules; ``None``: all."""

    @property
    def source(self) -> str:
        """``ce_source`` of what it writes."""
        return f"/streams/{self.name}"

    def inputs(self, rules: R) -> tuple[Topic, ...]:
        """Topics that it reads under ``rules``."""
        return self.reads if self.hears is None else self.hears(rules)
