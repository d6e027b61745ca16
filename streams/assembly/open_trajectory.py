"""An open trajectory: its raw records by sequence number, and the state needed to close it."""

from collections.abc import Iterable

from headrace.schemas.bounds import is_time
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect
from headrace.streams.assembly.arrival import MAX_ID_BYTES, Arrival
from headrace.streams.assembly.gaps import NO_GAPS, gaps_between
from headrace.streams.assembly.history import History
from headrace.streams.assembly.open_state import OpenState
from headrace.streams.structs import writing

_Reference = writing(Reference)


class OpenTrajectory(OpenState):
    """A trajectory that is not closed yet."""

    __slots__ = ()

    @property
    def is_complete(self) -> bool:
        """Whether the end and everything before it have arrived."""
        return self.end is not None and self.end < self.contiguous

    @property
    def gaps(self) -> int:
        """Number of gaps in its sequence numbers so far."""
        return self.runs - (self.contiguous > 0)

    def note_place(self, sequence: int) -> None:
        """Record that ``sequence``, which was missing, has arrived."""
        self.runs += 1 - self._is_taken(sequence - 1) - self._is_taken(sequence + 1)

    def _is_taken(self, sequence: int) -> bool:
        return sequence in self.records or sequence in self.unreadable

    def touch(self, arrival: Arrival, stream_ms: int, idle_ms: int) -> None:
        """Record that ``arrival`` named it at stream time ``stream_ms``; ``idle_ms``: the clock of the idle timeout."""
        self.last = arrival.offset
        time_ms = arrival.timestamp if is_time(arrival.timestamp) else stream_ms
        if time_ms < self.first_ms:
            self.first_ms = time_ms
        if time_ms > self.last_ms:
            self.last_ms = time_ms
        self.quiet_since = idle_ms

    def advance(self) -> None:
        """Advance ``contiguous`` to the first missing sequence number."""
        number = self.contiguous
        while self._is_taken(number):
            number += 1
        self.contiguous = number

    def closed(self, stream_ms: int, closed_offset: int, labels: Iterable[Defect]) -> History:
        """Returns its history when it closes. Events after its end are late, whichever arrived first."""
        records = self.records
        numbers = sorted(records)
        there = sorted(records.keys() | self.unreadable.keys()) if self.unreadable else numbers
        top = (there[-1] if there else -1) if self.end is None else self.end
        missing = NO_GAPS
        if self.contiguous <= top:
            missing = gaps_between(there[self.contiguous :], self.contiguous, top + 1)
        unreadable = {number: label for number, (label, _) in sorted(self.unreadable.items()) if number <= top}
        late: tuple[Arrival, ...] = ()
        if numbers != list(records) or (numbers and numbers[-1] > top):
            late = tuple(records[number] for number in numbers if number > top)
            records = {number: records[number] for number in numbers if number <= top}
        found = {*labels, *self.labels, *unreadable.values()}
        if missing:
            found.add(Defect.MISSING_EVENTS)
        if self.end is None:
            found.add(Defect.NO_END)
        start_id = records[0].id if 0 in records else None
        return History(
            trajectory_id=self.trajectory_id,
            records=records,
            unreadable=unreadable,
            missing=missing,
            late=late,
            labels=frozenset(found),
            duplicates=self.duplicates,
            first=_Reference(partition=self.partition, offset=self.first),
            last=_Reference(partition=self.partition, offset=self.last),
            first_ms=self.first_ms,
            last_ms=self.last_ms,
            closed_ms=stream_ms,
            closed_offset=closed_offset,
            start_id=start_id if start_id is not None and len(start_id) <= MAX_ID_BYTES else None,
        )
