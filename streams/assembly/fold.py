"""The per-event path: records of one ``events`` partition in, closed trajectories and dead letters out.

A state machine without clock, randomness or I/O. What it does follows from the records alone, so a replay gives the
same bytes. Records stay the raw bytes they came as; on arrival only their headers are looked at (:mod:`arrival`).

| a record …                                | is …                                                         |
|-------------------------------------------|--------------------------------------------------------------|
| of a trajectory not seen before           | its first: the trajectory opens                              |
| with a number that is there, and its id   | a duplicate: counted, dropped                                |
| with a number that is there, another id   | of another run: a dead letter, and its trajectory's label    |
| of which headers, size, timestamp or the  | a dead letter, and a labelled gap in its trajectory          |
|   payload's ends show that it is bad      |                                                              |
| without usable headers                    | a dead letter; its trajectory, if it names one, is labelled  |
| of a closed trajectory, known / not known | a duplicate, dropped / a dead letter (late, or of another run) |
| ``clock.ticked``                          | time, and nothing else                                       |

| a trajectory closes when …                              | labelled                             |
|---------------------------------------------------------|--------------------------------------|
| its end and everything before it are there              |                                      |
| its end is there and ``hole_grace_ms`` have passed      | ``missing_events``                   |
| nothing came for ``idle_timeout_ms``                    | ``no_end``                           |
| it, or the partition's memory, is at its bound          | ``oversize``, and what else is wrong |

Where a bound over all is reached, what takes the room is closed: the largest for memory, the longest silent for the
count, the oldest where a restart would have too much to read. A record of a closed trajectory changes nothing for any
other.

Log time is the latest timestamp within bounds in the partition. What a record's time closes is closed before the record
is looked at. Of the gaps between records only so much passes for the two timeouts as :mod:`fold_limits` says.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from headrace.schemas.bounds import is_time
from headrace.schemas.envelope import SUBJECT
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.arrival import END, KINDS, MAX_ID_BYTES, TICK, Arrival, arrival_of, problem_with
from headrace.streams.assembly.event_decoder import evident_problem
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.gaps import count
from headrace.streams.assembly.history import Dead, History
from headrace.streams.assembly.open_trajectory import OpenTrajectory
from headrace.streams.assembly.remembered import Emitted, Memory, Remembered
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord

RECORD_BYTES = 335
"""Memory that a held record takes beside :attr:`Arrival.size` and its trajectory's id."""
TRAJECTORY_BYTES = 870
"""Memory that an open trajectory takes beside its records and twice its id."""
PLACE_BYTES = 150
"""Memory that the place of an unreadable event takes beside its id."""

_NEVER = 1 << 62


class PartitionFold:
    """Folds one partition from the record at ``position`` on. After a restart, ``log_ms`` and ``written`` are what
    :mod:`recovery` found, the latter in order.
    """

    def __init__(
        self, limits: FoldLimits, *, log_ms: int = 0, position: int = 0, written: Iterable[Emitted] = ()
    ) -> None:
        self.limits = limits
        self.log_ms = log_ms
        self.idle_ms = 0
        """Time that has passed for the idle timeout, from wherever the fold began."""
        self.grace_ms = 0
        """The same for the grace of holes."""
        self.duplicates = 0
        """Records dropped because they had come before."""
        self.held_events = 0
        """Events of open trajectories."""
        self.held_bytes = 0
        """Memory of all open trajectories together."""
        self.closed_count = 0
        """Trajectories closed, counted from the first of ``written``."""
        self._memory = Memory(limits.remember, limits.remember_bytes)
        self._remembered = self._memory.known
        self._ahead: dict[bytes, deque[Emitted]] = {}  # written by a predecessor, and not closed yet at this place
        self._ahead_in_order: deque[Emitted] = deque()
        self._catch_up_at = _NEVER  # input offset at which the first of them had closed
        self._open: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by first record
        self._quiet: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by latest record
        self._ended: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by end; those that wait for missing events
        # No deadline is earlier than this log time: what counts never passes faster than the log's time.
        self._look_at = _NEVER
        self._ordinary = SPEEDUPS and SPEEDUPS.OrdinaryEvents(
            OpenTrajectory,
            sorted(KINDS - {END, TICK}),
            record_bytes=RECORD_BYTES,
            trajectory_bytes=TRAJECTORY_BYTES,
            max_event_bytes=limits.max_event_bytes,
            max_trajectory_bytes=limits.max_trajectory_bytes,
            max_trajectory_events=limits.max_trajectory_events,
            max_open=limits.max_open,
            max_open_bytes=limits.max_open_bytes,
            idle_timeout_ms=limits.idle_timeout_ms,
            idle_step_ms=limits.idle_step_ms,
            grace_step_ms=limits.grace_step_ms,
        )
        for each in written:
            self._ahead_in_order.append(each)
            self._ahead.setdefault(each.remembered.subject, deque()).append(each)
        self._catch_up(position)

    @property
    def open_count(self) -> int:
        """Trajectories under way."""
        return len(self._open)

    @property
    def remembered_count(self) -> int:
        """Closed trajectories that are remembered."""
        return len(self._remembered)

    @property
    def remembered_bytes(self) -> int:
        """Memory of what is remembered."""
        return self._memory.size

    @property
    def needed_count(self) -> int:
        """:attr:`closed_count` as it was at the record from which a restart reads: it must know what was remembered
        there.
        """
        return next(iter(self._open.values())).closed_before if self._open else self.closed_count

    @property
    def deadline_ms(self) -> int | None:
        """Log time at which the next trajectory closes if only ticks come; ``None`` with none open."""
        return min((self.log_ms + left for left, _ in self._deadlines()), default=None)

    @property
    def waits_for_holes(self) -> bool:
        """Whether a trajectory has its end and waits for events that are missing."""
        return bool(self._ended)

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
        if record.offset >= self._catch_up_at:
            self._catch_up(record.offset)
        log_ms_before = self.log_ms
        if record.timestamp > log_ms_before and is_time(record.timestamp):
            gap_ms = record.timestamp - log_ms_before
            self.log_ms = record.timestamp
            self.idle_ms += min(gap_ms, self.limits.idle_step_ms)
            self.grace_ms += min(gap_ms, self.limits.grace_step_ms)
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
            known = self._known(subject, arrival.offset)
            if known is not None:
                self._recall(arrival, known, out)
                return out
            trajectory = self._start(arrival, subject, log_ms_before)
        self._quiet.move_to_end(subject)
        trajectory.touch(arrival, self.log_ms, self.idle_ms)
        self._add(trajectory, subject, arrival, out)
        if self.held_bytes > self.limits.max_open_bytes or len(self._open) > self.limits.max_open or out:
            self._make_room(arrival.offset, out)
        return out

    def _start(self, arrival: Arrival, subject: bytes, log_ms_before: int) -> OpenTrajectory:
        time_ms = arrival.timestamp if is_time(arrival.timestamp) else self.log_ms
        trajectory = OpenTrajectory(
            subject.decode(), arrival.partition, arrival.offset, log_ms_before, time_ms, time_ms, self.closed_count
        )
        trajectory.size = TRAJECTORY_BYTES + 2 * len(subject)
        self.held_bytes += trajectory.size
        self._open[subject] = self._quiet[subject] = trajectory
        self._look_at = min(self._look_at, self.log_ms + self.limits.idle_timeout_ms)
        return trajectory

    def _add(self, trajectory: OpenTrajectory, subject: bytes, arrival: Arrival, out: list[History | Dead]) -> None:
        """Put an event in its place; close the trajectory where that completes it."""
        sequence = arrival.sequence
        held = None if sequence is None else trajectory.records.get(sequence)
        if held is not None:
            if is_of_another(arrival.id, held.id):
                trajectory.labels.add(Defect.CONFLICT)
                out.append(Dead(arrival, _conflict(arrival), trajectory.trajectory_id))
                return
            trajectory.duplicates += 1
            self.duplicates += 1
            return
        if sequence in trajectory.unreadable and is_of_another(arrival.id, trajectory.unreadable[sequence][1]):
            trajectory.labels.add(Defect.CONFLICT)
            out.append(Dead(arrival, self._problem(arrival) or _conflict(arrival), trajectory.trajectory_id))
            return
        problem = self._problem(arrival)
        if problem is None and sequence is not None:
            if trajectory.unreadable.pop(sequence, None) is None:  # else it was sent again, repaired
                trajectory.note_place(sequence)
            trajectory.records[sequence] = arrival
            self.held_events += 1
            size = RECORD_BYTES + arrival.size + len(subject)
        elif problem is not None and not self._spoil(trajectory, arrival, problem, out):
            return
        else:
            size = PLACE_BYTES + len(usual_id(arrival.id) or b"")
        trajectory.size += size
        self.held_bytes += size
        if sequence == trajectory.contiguous:
            trajectory.advance()
        if arrival.kind == END and sequence is not None:
            self._note_end(trajectory, subject, sequence)
        if trajectory.end is not None and trajectory.is_complete:
            self._close(subject, arrival.offset + 1, out)
        elif trajectory.size > self.limits.max_trajectory_bytes or trajectory.gaps > self.limits.max_gaps:
            self._close(subject, arrival.offset + 1, out, Defect.OVERSIZE)

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
        trajectory.note_place(sequence)
        trajectory.unreadable[sequence] = label, usual_id(arrival.id)
        return True

    def _note_end(self, trajectory: OpenTrajectory, subject: bytes, sequence: int) -> None:
        if trajectory.end is None:
            trajectory.ended_at = self.grace_ms
            self._ended[subject] = trajectory
            self._look_at = min(self._look_at, self.log_ms + self.limits.hole_grace_ms)
        trajectory.end = sequence if trajectory.end is None else min(trajectory.end, sequence)

    def _problem(self, arrival: Arrival) -> UnreadableRecord | None:
        """Why an event cannot be used, as far as that shows on arrival."""
        return problem_with(arrival, self.limits) or evident_problem(arrival)

    def _catch_up(self, offset: int) -> None:
        """Remember what a predecessor had closed by the record at ``offset``."""
        ahead = self._ahead_in_order
        while ahead and ahead[0].closed_offset <= offset:
            closed = ahead.popleft().remembered
            of_subject = self._ahead[closed.subject]
            of_subject.popleft()
            if not of_subject:
                del self._ahead[closed.subject]
            self._remember(closed)
        self._catch_up_at = ahead[0].closed_offset if ahead else _NEVER

    def _remember(self, closed: Remembered) -> None:
        self.closed_count += 1
        self._memory.add(closed)

    def _known(self, subject: bytes, offset: int) -> Remembered | None:
        """The trajectory that a record at ``offset`` names, if it was written already and is not forgotten."""
        ahead = self._ahead.get(subject)
        if ahead is not None and ahead[0].first <= offset:
            return ahead[0].remembered
        return self._remembered.get(subject)

    def _recall(self, arrival: Arrival, known: Remembered, out: list[History | Dead]) -> None:
        """An event of a trajectory that is closed. Of whose run it is, its id says where it is event 0; of another that
        came before, that is not known any more.
        """
        sequence = arrival.sequence
        if sequence is None or not known.holds(sequence):
            late = UnreadableRecord(DeadLetterError.LATE, f"event {sequence} came after its trajectory was closed")
            out.append(Dead(arrival, self._problem(arrival) or late, known.subject.decode()))
        elif sequence == 0 and is_of_another(arrival.id, known.start_id):
            out.append(Dead(arrival, _conflict(arrival), known.subject.decode()))
        else:
            self.duplicates += 1

    def _deadlines(self) -> Iterator[tuple[int, bytes]]:
        """How long the next trajectory of each kind still has, in milliseconds; below 0 it is overdue."""
        for subject, trajectory in self._ended.items():
            yield trajectory.ended_at + self.limits.hole_grace_ms - self.grace_ms, subject
            break
        for subject, trajectory in self._quiet.items():
            yield trajectory.quiet_since + self.limits.idle_timeout_ms - self.idle_ms, subject
            break

    def _close_overdue(self, offset: int, out: list[History | Dead]) -> None:
        while overdue := [entry for entry in self._deadlines() if entry[0] <= 0]:
            # min() takes the first of equals: an end before a silence
            self._close(min(overdue, key=itemgetter(0))[1], offset, out)
        deadline = self.deadline_ms
        self._look_at = _NEVER if deadline is None else deadline

    def _make_room(self, offset: int, out: list[History | Dead]) -> None:
        """Close what takes too much of what all share, while the record at ``offset`` is taken."""
        limits = self.limits
        while self._open:
            if self.closed_count - self.needed_count > limits.max_remembered:
                self._close(next(iter(self._open)), offset + 1, out, Defect.OVERSIZE)
            elif len(self._open) > limits.max_open:
                self._close(next(iter(self._quiet)), offset + 1, out, Defect.OVERSIZE)
            elif self.held_bytes > limits.max_open_bytes:
                self._close_largest(offset, out)
            else:
                return

    def _close_largest(self, offset: int, out: list[History | Dead]) -> None:
        """Close the largest trajectories, the oldest of equals first, until a sixteenth of all memory is free: to look
        for them at every record would take too long.
        """
        enough = self.limits.max_open_bytes - self.limits.max_open_bytes // 16
        for subject in sorted(self._open, key=lambda subject: -self._open[subject].size):
            if self.held_bytes <= enough:
                return
            self._close(subject, offset + 1, out, Defect.OVERSIZE)

    def _close(self, subject: bytes, closed_offset: int, out: list[History | Dead], *labels: Defect) -> None:
        """Close a trajectory: its records from ``closed_offset`` on are late."""
        trajectory = self._open.pop(subject)
        del self._quiet[subject]
        self._ended.pop(subject, None)
        self.held_bytes -= trajectory.size
        self.held_events -= len(trajectory.records)
        history = trajectory.closed(self.log_ms, closed_offset, labels)
        out.append(history)
        top = len(history.records) + len(history.unreadable) + count(history.missing) - 1
        self._remember(Remembered(subject, top, history.missing, history.start_id))


def usual_id(id: bytes | None) -> bytes | None:
    """``id`` where it can be an event's; ``None`` for another, which says nothing and may be what is to be repaired."""
    if not id or len(id) > MAX_ID_BYTES:
        return None
    try:
        id.decode()
    except UnicodeDecodeError:
        return None
    return id


def is_of_another(one: bytes | None, other: bytes | None) -> bool:
    """Whether two events with one sequence number have different ids. A missing one says nothing."""
    return one != other and one is not None and other is not None


def _conflict(arrival: Arrival) -> UnreadableRecord:
    message = (
        f"another event with sequence number {arrival.sequence} is there: two runs use one trajectory id. "
        "Give each run an id of its own"
    )
    return UnreadableRecord(DeadLetterError.CONFLICT, message)
