"""A range of an ``events`` partition folded again, by the fold that live processing runs.

A trajectory that began before the range lacks its first events here. Such a trajectory is open at the first offset of
the range, so one of its events arrives within the idle timeout. Trajectories that lack events and were first seen by
then are left out and counted, as are those still open at the end. All others equal the live assembler's byte for byte.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    """Outputs of the next records of a partition."""

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


class Rederivation:
    """The fold of one partition of the range."""

    def __init__(self, partition: int, limits: FoldLimits, *, begins_log: bool) -> None:
        """``begins_log``: whether the range starts at the log's first offset, so that no trajectory can be cut."""
        self._fold = PartitionFold(limits)
        self._limits = limits
        self.pending_bytes = 0
        """Size of the records in :attr:`pending`."""
        self._portion = Portion(partition)
        self._begun = False
        # While a trajectory from before the range may still arrive, records are folded one by one.
        self._may_be_cut = not begins_log
        self._begun_idle_ms: int | None = None
        self._cut_before_ms = 0

    @property
    def pending(self) -> Portion:
        """Outputs since the last :meth:`portion`."""
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
        self._add(outgoing for outgoing in made if outgoing.topic is DEAD_LETTERS)

    def portion(self) -> Portion:
        """Returns the outputs since the last call."""
        portion, self._portion = self._portion, Portion(self._portion.partition)
        self.pending_bytes = 0
        return portion

    def finish(self) -> Portion:
        """Returns the last portion, after the last record."""
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
                self._add(outputs_of(outcome))

    def _add(self, made: Iterable[Outgoing]) -> None:
        for outgoing in made:
            self._portion.items.append(outgoing)
            self.pending_bytes += len(outgoing.message.value)
