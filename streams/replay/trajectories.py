"""A range of an ``events`` partition folded again, by the fold that live processing runs.

A trajectory that began before the range lacks its first events here. Such a trajectory is open at the first offset of
the range, so it shows up within the idle timeout: one that lacks events and was first seen by then is left out and
counted, and so is what is still open at the end. Everything else is byte for byte what the live assembler wrote.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from aiokafka import TopicPartition

from headrace.schemas.bounds import is_time
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.streams.assembly.assemble import outputs_of
from headrace.streams.assembly.batch_outputs import batch_outputs
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History
from headrace.streams.raw import LogRecord, Outgoing

CUT = "trajectories_cut_at_begin"
OPEN = "trajectories_open_at_end"


class LeftOut(NamedTuple):
    """A trajectory that began before the range."""

    closed_ms: int
    """Stream time at which it closed: groups that were open then may lack a member."""


Folded: TypeAlias = Outgoing | LeftOut
"""A trajectory, a dead letter, or a trajectory that is left out."""


@dataclass(slots=True)
class Portion:
    """What the next records of a partition were folded into."""

    partition: int
    """Partition of ``events``."""
    records: int = 0
    """Records folded."""
    begin_ms: int | None = None
    """Timestamp of the range's first record in this partition, Unix milliseconds; only in the first portion."""
    end_ms: int = 0
    """Latest timestamp among the records, Unix milliseconds."""
    items: list[Folded] = field(default_factory=list)
    """In the order in which they were closed or found unreadable."""
    counts: Counter[str] = field(default_factory=Counter)
    """Records read, trajectories made and left out, by name."""
    is_last: bool = False
    """Whether the range ends here."""

    @property
    def payload_bytes(self) -> int:
        """Size of the records in ``items``."""
        return sum(len(item.message.value) for item in self.items if isinstance(item, Outgoing))


class Rederivation:
    """The fold of one partition of the range."""

    def __init__(self, partition: int, limits: FoldLimits, *, begins_log: bool) -> None:
        """``begins_log``: nothing stood before the range, so nothing can have been cut."""
        self._fold = PartitionFold(limits)
        self._limits = limits
        self._portion = Portion(partition)
        self._begun = False
        # While a trajectory from before the range may still show up, records are looked at one by one.
        self._may_be_cut = not begins_log
        self._begun_idle_ms: int | None = None
        self._cut_before_ms = 0

    @property
    def pending(self) -> Portion:
        """What was folded since the last :meth:`portion`."""
        return self._portion

    def take(self, records: Sequence[LogRecord]) -> Iterator[None]:
        """Fold the list ``records``, the next of the partition; yields whenever something was added to the portion."""
        portion = self._portion
        if records and not self._begun:
            self._begun = True
            portion.begin_ms = max(0, records[0].timestamp)
        portion.records += len(records)
        portion.counts[f"read_{EVENTS.name}"] += len(records)
        portion.end_ms = max([portion.end_ms, *(each.timestamp for each in records if is_time(each.timestamp))])
        index = 0
        while index < len(records):
            if not self._may_be_cut:
                index = self._fold.take_ordinary(records, index)
            if index < len(records):
                before = len(self._portion.items)
                self._arrive(records[index])
                index += 1
                if len(self._portion.items) > before:
                    yield

    def skip(self, offsets: range) -> None:
        """Skip the batch at ``offsets``, which cannot be decompressed."""
        place = TopicPartition(EVENTS.name, self._portion.partition)
        made = batch_outputs(place, offsets, self._fold.stream_ms)
        self._portion.items += [outgoing for outgoing in made if outgoing.topic is DEAD_LETTERS]

    def portion(self) -> Portion:
        """What was folded since the last call."""
        portion, self._portion = self._portion, Portion(self._portion.partition)
        return portion

    def finish(self) -> Portion:
        """The last portion: nothing more is read."""
        portion = self.portion()
        portion.counts[OPEN] = self._fold.open_count
        portion.is_last = True
        return portion

    def _arrive(self, record: LogRecord) -> None:
        outcomes = self._fold.arrive(record)
        if self._begun_idle_ms is None:
            self._begun_idle_ms = self._fold.idle_ms
        if self._may_be_cut:
            self._may_be_cut = self._fold.idle_ms - self._begun_idle_ms < self._limits.idle_timeout_ms
            if self._may_be_cut:
                self._cut_before_ms = self._fold.stream_ms + 1
        for outcome in outcomes:
            if isinstance(outcome, History) and outcome.missing and outcome.first_ms < self._cut_before_ms:
                self._portion.counts[CUT] += 1
                self._portion.items.append(LeftOut(outcome.closed_ms))
            else:
                self._portion.counts[TRAJECTORIES.name] += isinstance(outcome, History)
                self._portion.items += outputs_of(outcome)
