"""The per-event path: records of one ``events`` partition in, closed trajectories and dead letters out.

A state machine without clock, randomness or I/O. What it does follows from the records alone, so a replay gives the
same bytes. Records stay the raw bytes they came as; on arrival only their headers are looked at (:mod:`arrival`).

| a record …                                | is …                                                         |
|-------------------------------------------|--------------------------------------------------------------|
| of a trajectory not seen before           | its first: the trajectory opens                              |
| with a sequence number that is there      | a duplicate: counted, dropped                                |
| null, oversize, of unknown type or with a | a dead letter, and a labelled gap in its trajectory          |
| timestamp out of bounds                   |                                                              |
| without usable headers                    | a dead letter; its trajectory, if it names one, is labelled  |
| of a closed trajectory, known / not known | a duplicate, dropped / a dead letter (late)                  |
| ``clock.ticked``                          | time, and nothing else                                       |

| a trajectory closes when …                              | labelled                             |
|---------------------------------------------------------|--------------------------------------|
| its end and everything before it are there              |                                      |
| its end is there and ``hole_grace_ms`` of log time went | ``missing_events``                   |
| nothing came for ``idle_timeout_ms`` of log time        | ``no_end``                           |
| it, or the partition's memory, is at its bound          | ``oversize``, and what else is wrong |

Log time is the latest timestamp within bounds in the partition. What a record's time closes is closed before the record
is looked at.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import msgspec

from headrace.schemas.bounds import is_time
from headrace.schemas.envelope import SUBJECT
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.arrival import END, KINDS, MAX_ID_BYTES, TICK, Arrival, arrival_of, problem_with
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import Dead, History
from headrace.streams.assembly.open_trajectory import OpenTrajectory
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord

_RECORD_BYTES = 1024
"""Memory that a held record takes beside its payload and headers, about: Python's objects."""

_NEVER = 1 << 62


class Remembered(msgspec.Struct, gc=False):
    """What stays known of a closed trajectory: which events it had, and when one was last seen."""

    top: int
    """Highest sequence number; −1 with none."""
    holes: frozenset[int]
    """Sequence numbers below it that never came."""
    touched: int
    """Offset of the last record that named the trajectory."""

    def holds(self, sequence: int) -> bool:
        """Whether the event ``sequence`` came before the trajectory closed."""
        return sequence <= self.top and sequence not in self.holes


class PartitionFold:
    """Folds one partition. After a restart, ``log_ms`` and ``remembered`` are what :mod:`recovery` found."""

    def __init__(
        self, limits: FoldLimits, *, log_ms: int = 0, remembered: Iterable[tuple[bytes, Remembered]] = ()
    ) -> None:
        self.limits = limits
        self.log_ms = log_ms
        self.duplicates = 0
        """Records dropped because their place was taken."""
        self.held_events = 0
        """Events of open trajectories."""
        self.held_bytes = 0
        """Memory of all open trajectories together, about."""
        self._remembered: OrderedDict[bytes, Remembered] = OrderedDict(remembered)
        self._open: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by first record
        self._quiet: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by latest record
        self._ended: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by end; those that wait for missing events
        self._look_at = _NEVER  # no deadline is earlier than this log time
        self._ordinary = SPEEDUPS and SPEEDUPS.OrdinaryEvents(
            OpenTrajectory,
            sorted(KINDS - {END, TICK}),
            record_bytes=_RECORD_BYTES,
            max_event_bytes=limits.max_event_bytes,
            max_trajectory_bytes=limits.max_trajectory_bytes,
            max_trajectory_events=limits.max_trajectory_events,
            max_open=limits.max_open,
            max_open_bytes=limits.max_open_bytes,
            idle_timeout_ms=limits.idle_timeout_ms,
        )

    @property
    def open_count(self) -> int:
        """Trajectories under way."""
        return len(self._open)

    @property
    def remembered_count(self) -> int:
        """Closed trajectories that are remembered: the latest so many outputs."""
        return len(self._remembered)

    @property
    def deadline_ms(self) -> int | None:
        """Log time at which the next trajectory closes if nothing else comes; ``None`` with none open."""
        return min((deadline for deadline, _ in self._deadlines()), default=None)

    @property
    def oldest_open_ms(self) -> int | None:
        """Log time before the first record of the trajectory that is open longest; ``None`` with none open."""
        return next(iter(self._open.values())).log_ms_before if self._open else None

    def resume_point(self, position: int) -> tuple[int, int]:
        """Where a restart must read from, ``position`` being the next offset, and the log time before that record."""
        if not self._open:
            return position, self.log_ms
        oldest = next(iter(self._open.values()))
        return oldest.first, oldest.log_ms_before

    def take_ordinary(self, records: Sequence[LogRecord], start: int) -> int:
        """Take what is ordinary of the list ``records`` from ``start`` on: each the first event of a new trajectory, or
        the next of one that is open and whole so far, and closing nothing. Returns the index of the first that must
        :meth:`arrive`.

        Nothing follows from it that does not follow from :meth:`arrive`; it is faster where there is an extension
        module, and else takes nothing.
        """
        return start if self._ordinary is None else self._ordinary.take(self, records, start)

    def arrive(self, record: LogRecord) -> list[History | Dead]:
        """Take the partition's next record; returns what it closed and what could not be used, in order."""
        out: list[History | Dead] = []
        log_ms_before = self.log_ms
        if record.timestamp > log_ms_before and is_time(record.timestamp):
            self.log_ms = record.timestamp
            if self.log_ms >= self._look_at:
                self._close_overdue(record.offset, out)
        arrival = arrival_of(record)
        if arrival.kind == TICK:
            return out
        subject = arrival.subject
        trajectory = self._open.get(subject) if subject is not None else None
        if subject is None or (trajectory is None and not arrival.names_trajectory):
            message = f"header {SUBJECT} is missing, not UTF-8, empty or longer than {MAX_ID_BYTES} bytes"
            out.append(Dead(arrival, UnreadableRecord(DeadLetterError.BAD_HEADERS, message)))
            return out
        if trajectory is None:
            known = self._remembered.get(subject)
            if known is not None:
                self._recall(arrival, subject, known, out)
                return out
            trajectory = self._start(arrival, subject, log_ms_before)
        self._quiet.move_to_end(subject)
        trajectory.touch(arrival, self.log_ms)
        self._add(trajectory, subject, arrival, out)
        if self.held_bytes > self.limits.max_open_bytes or len(self._open) > self.limits.max_open or out:
            self._make_room(arrival.offset, out)
        return out

    def _start(self, arrival: Arrival, subject: bytes, log_ms_before: int) -> OpenTrajectory:
        time_ms = arrival.timestamp if is_time(arrival.timestamp) else self.log_ms
        trajectory = OpenTrajectory(
            subject.decode(), arrival.partition, arrival.offset, log_ms_before, time_ms, time_ms
        )
        self._open[subject] = self._quiet[subject] = trajectory
        self._look_at = min(self._look_at, self.log_ms + self.limits.idle_timeout_ms)
        return trajectory

    def _add(self, trajectory: OpenTrajectory, subject: bytes, arrival: Arrival, out: list[History | Dead]) -> None:
        """Put an event in its place; close the trajectory where that completes it."""
        sequence = arrival.sequence
        if sequence in trajectory.records:
            trajectory.duplicates += 1
            self.duplicates += 1
            return
        size = _RECORD_BYTES
        problem = problem_with(arrival, self.limits)
        if problem is None and sequence is not None:
            if trajectory.unreadable:
                trajectory.unreadable.pop(sequence, None)  # sent again, repaired
            trajectory.records[sequence] = arrival
            self.held_events += 1
            size += arrival.size
        elif problem is not None and not self._spoil(trajectory, arrival, problem, out):
            return
        trajectory.size += size
        self.held_bytes += size
        if sequence == trajectory.contiguous:
            trajectory.advance()
        if arrival.kind == END and sequence is not None:
            self._note_end(trajectory, subject, sequence)
        if trajectory.end is not None and trajectory.is_complete:
            self._close(subject, arrival.offset, out)
        elif trajectory.size > self.limits.max_trajectory_bytes:
            self._close(subject, arrival.offset, out, Defect.OVERSIZE)

    def _spoil(
        self, trajectory: OpenTrajectory, arrival: Arrival, problem: UnreadableRecord, out: list[History | Dead]
    ) -> bool:
        """Label the place of an event that cannot be used; ``False`` where it has none or is labelled already."""
        sequence = arrival.sequence
        if sequence in trajectory.unreadable:
            trajectory.duplicates += 1
            self.duplicates += 1
            return False
        out.append(Dead(arrival, problem, trajectory.trajectory_id))
        label = Defect.OVERSIZE if problem.error is DeadLetterError.OVERSIZE else Defect.BAD_EVENT
        if sequence is None or sequence >= self.limits.max_trajectory_events:
            trajectory.labels.add(label)
            return False
        trajectory.unreadable[sequence] = label
        return True

    def _note_end(self, trajectory: OpenTrajectory, subject: bytes, sequence: int) -> None:
        if trajectory.end is None:
            trajectory.end_log_ms = self.log_ms
            self._ended[subject] = trajectory
            self._look_at = min(self._look_at, self.log_ms + self.limits.hole_grace_ms)
        trajectory.end = sequence if trajectory.end is None else min(trajectory.end, sequence)

    def _recall(self, arrival: Arrival, subject: bytes, known: Remembered, out: list[History | Dead]) -> None:
        """An event of a trajectory that is closed."""
        known.touched = arrival.offset
        sequence = arrival.sequence
        if sequence is not None and known.holds(sequence):
            self.duplicates += 1
            return
        late = UnreadableRecord(DeadLetterError.LATE, f"event {sequence} came after its trajectory was closed")
        out.append(Dead(arrival, problem_with(arrival, self.limits) or late, subject.decode()))

    def _deadlines(self) -> Iterator[tuple[int, bytes]]:
        """The next deadline of each kind."""
        for subject, trajectory in self._ended.items():
            yield trajectory.end_log_ms + self.limits.hole_grace_ms, subject
            break
        for subject, trajectory in self._quiet.items():
            yield trajectory.quiet_since + self.limits.idle_timeout_ms, subject
            break

    def _close_overdue(self, offset: int, out: list[History | Dead]) -> None:
        while overdue := [entry for entry in self._deadlines() if entry[0] <= self.log_ms]:
            # min() takes the first of equals: an end before a silence
            self._close(min(overdue, key=itemgetter(0))[1], offset, out)
        deadline = self.deadline_ms
        self._look_at = _NEVER if deadline is None else deadline

    def _make_room(self, offset: int, out: list[History | Dead]) -> None:
        """Close the oldest while the partition's memory is beyond its bounds; ids come to it as trajectories close."""
        while self._open and (
            self.held_bytes > self.limits.max_open_bytes
            or len(self._open) > self.limits.max_open
            or len(self._remembered) > self.limits.max_remembered
        ):
            self._close(next(iter(self._open)), offset, out, Defect.OVERSIZE)

    def _close(self, subject: bytes, offset: int, out: list[History | Dead], *labels: Defect) -> None:
        """Close a trajectory while the record at ``offset`` is taken."""
        trajectory = self._open.pop(subject)
        del self._quiet[subject]
        self._ended.pop(subject, None)
        self.held_bytes -= trajectory.size
        self.held_events -= len(trajectory.records)
        history = trajectory.closed(self.log_ms, labels)
        out.append(history)
        top = len(history.records) + len(history.unreadable) + len(history.missing) - 1
        self._remembered[subject] = Remembered(top, frozenset(history.missing), trajectory.last)
        self._forget(offset)

    def _forget(self, offset: int) -> None:
        """Forget the oldest ids beyond ``remember``, but none whose events a restart might read again."""
        resume_from, _ = self.resume_point(offset)
        while len(self._remembered) > self.limits.remember:
            if next(iter(self._remembered.values())).touched >= resume_from:
                return
            self._remembered.popitem(last=False)
