"""The per-event path: records of one ``events`` partition in, closed trajectories and dead letters out.

A state machine without clock, randomness or I/O. What it does follows from the records alone, so a replay gives the
same bytes. Records stay the raw bytes they came as; on arrival only three headers are looked at.

| a record …                                | is …                                                         |
|-------------------------------------------|--------------------------------------------------------------|
| of a trajectory not seen before           | its first: the trajectory opens                              |
| with a sequence number that is there      | a duplicate: counted, dropped                                |
| null, oversize or of unknown type         | a dead letter, and a labelled gap in its trajectory          |
| without usable headers                    | a dead letter; its trajectory, if it names one, is labelled  |
| of a closed trajectory, known / not known | a duplicate, dropped / a dead letter (late)                  |
| ``clock.ticked``                          | time, and nothing else                                       |

| a trajectory closes when …                              | labelled                             |
|---------------------------------------------------------|--------------------------------------|
| its end and everything before it are there              |                                      |
| its end is there and ``hole_grace_ms`` of log time went | ``missing_events``                   |
| nothing came for ``idle_timeout_ms`` of log time        | ``no_end``                           |
| it, or the partition's memory, is at its bound          | ``oversize``, and what else is wrong |

Log time is the latest timestamp in the partition. What a record's time closes is closed before the record is looked at.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.schemas.envelope import SEQUENCE, SUBJECT, TYPE
from headrace.schemas.events import ClockTicked, TrajectoryEnded
from headrace.schemas.records import DeadLetterError, Defect
from headrace.schemas.topics import EVENTS
from headrace.schemas.upcast import UPCASTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.fold_limits import FoldLimits
from headrace.streams.history import Dead, History
from headrace.streams.open_trajectory import OpenTrajectory
from headrace.streams.raw import LogRecord

_TICK = ClockTicked.TYPE.encode()
_END = TrajectoryEnded.TYPE.encode()
_KNOWN = frozenset(name.encode() for name in ({model.TYPE for model in EVENTS.models} | set(UPCASTERS)))

_RECORD_BYTES = 1024
"""Memory that a held record takes beside its payload and headers, about: Python's objects."""

_MAX_ID_BYTES = 512
_NEVER = 1 << 62


@dataclass(slots=True)
class Remembered:
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
        """Records dropped as duplicates of closed trajectories' events."""
        self._remembered: OrderedDict[bytes, Remembered] = OrderedDict(remembered)
        self._open: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by first record
        self._quiet: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by latest record
        self._ended: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by end; those that wait for missing events
        self._open_bytes = 0
        self._look_at = _NEVER  # no deadline is earlier than this log time

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

    def resume_point(self, position: int) -> tuple[int, int]:
        """Where a restart must read from, ``position`` being the next offset, and the log time before that record."""
        if not self._open:
            return position, self.log_ms
        oldest = next(iter(self._open.values()))
        return oldest.first, oldest.log_ms_before

    def arrive(self, record: LogRecord) -> list[History | Dead]:
        """Take the partition's next record; returns what it closed and what could not be used, in order."""
        out: list[History | Dead] = []
        log_ms_before = self.log_ms
        if record.timestamp > log_ms_before:
            self.log_ms = record.timestamp
            if self.log_ms >= self._look_at:
                self._close_overdue(record.offset, out)
        headers = dict(record.headers)
        kind = headers.get(TYPE)
        if kind == _TICK:
            return out
        subject = headers.get(SUBJECT)
        if subject is None or (subject not in self._open and not _is_id(subject)):
            message = f"header {SUBJECT} is missing, not UTF-8, empty or longer than {_MAX_ID_BYTES} bytes"
            out.append(Dead(record, UnreadableRecord(DeadLetterError.BAD_HEADERS, message)))
            return out
        sequence = _natural(headers.get(SEQUENCE))
        size = len(record.value or b"") + _bytes_of(headers)
        known = self._remembered.get(subject)
        if known is not None:
            self._recall(record, subject, known, self._problem(record, kind, sequence, size), sequence, out)
            return out
        trajectory = self._open.get(subject)
        if trajectory is None:
            trajectory = self._start(record, subject, log_ms_before)
        self._quiet.move_to_end(subject)
        trajectory.touch(record, self.log_ms)
        self._add(trajectory, subject, record, kind, sequence, size, out)
        while self._open and self._is_full():
            self._close(next(iter(self._open)), record.offset, out, Defect.OVERSIZE)
        return out

    def _start(self, record: LogRecord, subject: bytes, log_ms_before: int) -> OpenTrajectory:
        trajectory = OpenTrajectory(
            subject.decode(), record.partition, record.offset, log_ms_before, record.timestamp, record.timestamp
        )
        self._open[subject] = self._quiet[subject] = trajectory
        self._look_at = min(self._look_at, self.log_ms + self.limits.idle_timeout_ms)
        return trajectory

    def _add(
        self,
        trajectory: OpenTrajectory,
        subject: bytes,
        record: LogRecord,
        kind: bytes | None,
        sequence: int | None,
        size: int,
        out: list[History | Dead],
    ) -> None:
        """Put ``record`` in its place; close the trajectory where that completes it."""
        if sequence is not None and sequence in trajectory.records:
            trajectory.duplicates += 1
            return
        problem = self._problem(record, kind, sequence, size)
        if problem is not None and sequence in trajectory.unreadable:
            trajectory.duplicates += 1
            return
        if problem is not None:
            out.append(Dead(record, problem, trajectory.trajectory_id))
            label = Defect.OVERSIZE if problem.error is DeadLetterError.OVERSIZE else Defect.BAD_EVENT
            if sequence is None or sequence >= self.limits.max_trajectory_events:
                trajectory.labels.add(label)
                return
            trajectory.unreadable[sequence] = label
            size = 0
        elif sequence is not None:
            trajectory.unreadable.pop(sequence, None)  # sent again, repaired
            trajectory.records[sequence] = record
        trajectory.size += size + _RECORD_BYTES
        self._open_bytes += size + _RECORD_BYTES
        trajectory.advance()
        if kind == _END:
            self._note_end(trajectory, subject, sequence)
        if trajectory.is_complete:
            self._close(subject, record.offset, out)
        elif trajectory.size > self.limits.max_trajectory_bytes:
            self._close(subject, record.offset, out, Defect.OVERSIZE)

    def _note_end(self, trajectory: OpenTrajectory, subject: bytes, sequence: int | None) -> None:
        if sequence is None:
            return
        if trajectory.end is None:
            trajectory.end_log_ms = self.log_ms
            self._ended[subject] = trajectory
            self._look_at = min(self._look_at, self.log_ms + self.limits.hole_grace_ms)
        trajectory.end = sequence if trajectory.end is None else min(trajectory.end, sequence)

    def _recall(
        self,
        record: LogRecord,
        subject: bytes,
        known: Remembered,
        problem: UnreadableRecord | None,
        sequence: int | None,
        out: list[History | Dead],
    ) -> None:
        """A record of a trajectory that is closed."""
        known.touched = record.offset
        if sequence is not None and known.holds(sequence):
            self.duplicates += 1
            return
        late = UnreadableRecord(DeadLetterError.LATE, f"event {sequence} came after its trajectory was closed")
        out.append(Dead(record, problem or late, subject.decode()))

    def _problem(
        self, record: LogRecord, kind: bytes | None, sequence: int | None, size: int
    ) -> UnreadableRecord | None:
        """Why ``record`` cannot be used, as far as that shows without decoding it."""
        if kind is None or sequence is None:
            message = f"header {TYPE if kind is None else SEQUENCE} is missing or malformed"
            return UnreadableRecord(DeadLetterError.BAD_HEADERS, message)
        if sequence >= self.limits.max_trajectory_events:
            message = f"sequence number {sequence}: max_trajectory_events is {self.limits.max_trajectory_events}"
            return UnreadableRecord(DeadLetterError.OVERSIZE, message)
        if kind not in _KNOWN:
            return UnreadableRecord(DeadLetterError.UNKNOWN_TYPE, f"no model for type {kind[:200]!r} in {EVENTS.name}")
        if record.value is None:
            return UnreadableRecord(DeadLetterError.NULL_VALUE, f"{kind.decode()}: the value is null")
        if size > self.limits.max_event_bytes:
            message = f"{size} bytes of payload and headers: max_event_bytes is {self.limits.max_event_bytes}"
            return UnreadableRecord(DeadLetterError.OVERSIZE, message)
        return None

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
            self._close(min(overdue)[1], offset, out)
        deadline = self.deadline_ms
        self._look_at = _NEVER if deadline is None else deadline

    def _is_full(self) -> bool:
        return (
            len(self._open) > self.limits.max_open
            or self._open_bytes > self.limits.max_open_bytes
            or len(self._remembered) > self.limits.max_remembered
        )

    def _close(self, subject: bytes, offset: int, out: list[History | Dead], *labels: Defect) -> None:
        """Close a trajectory while the record at ``offset`` is taken."""
        trajectory = self._open.pop(subject)
        del self._quiet[subject]
        self._ended.pop(subject, None)
        self._open_bytes -= trajectory.size
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


def _is_id(subject: bytes) -> bool:
    if not 0 < len(subject) <= _MAX_ID_BYTES:
        return False
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True


def _natural(value: bytes | None) -> int | None:
    """A sequence number; of more than 18 digits it is none."""
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else None


def _bytes_of(headers: dict[str, bytes | None]) -> int:
    return sum(map(len, filter(None, headers.values())))
