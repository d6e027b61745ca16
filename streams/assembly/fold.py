"""The per-event path: records of one ``events`` partition in, closed trajectories and dead letters out.

A state machine without clock, randomness or I/O. Its output depends on the records alone, so a replay gives identical
bytes. Records stay raw bytes; on arrival only their headers are parsed (:mod:`arrival`).

| a record …                                | is …                                                         |
|-------------------------------------------|--------------------------------------------------------------|
| of a trajectory not seen before           | its first: the trajectory opens                              |
| with a known number and the same id       | a duplicate: counted, dropped                                |
| with a known number and another id        | of another run: a dead letter, and its trajectory's label    |
| whose headers, size, timestamp or payload | a dead letter, and a labelled gap in its trajectory          |
|   boundaries are invalid                  |                                                              |
| without usable headers                    | a dead letter; its trajectory, if it names one, is labelled  |
| of a closed trajectory, known / not known | a duplicate, dropped / a dead letter (late, or of another run) |
| ``clock.ticked``                          | stream time only; a dead letter if it cannot be read         |

| a trajectory closes when …                              | labelled                             |
|---------------------------------------------------------|--------------------------------------|
| its end and everything before it have arrived           |                                      |
| its end has arrived and ``hole_grace_ms`` have passed   | ``missing_events``                   |
| nothing arrived for ``idle_timeout_ms``                 | ``no_end``                           |
| it, or the partition's memory, reaches its limit        | ``oversize``, and other defects      |

If a limit of the whole partition is reached, trajectories are closed: the largest for memory, the longest silent for
the count, the oldest if a restart would have to read too much. A record of a closed trajectory affects no other
trajectory.

Stream time is the latest in-bounds timestamp in the partition. Trajectories that a record's timestamp times out are
closed before the record is processed. How much of the gap between two records counts for the two timeouts is defined
in :mod:`fold_limits`.
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
from headrace.streams.assembly.event_decoder import evident_problem, problem_of
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.gaps import count
from headrace.streams.assembly.history import History, UnusableRecord
from headrace.streams.assembly.open_trajectory import OpenTrajectory
from headrace.streams.assembly.remembered import Emitted, Memory, Remembered
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord

RECORD_BYTES = 335
"""Memory of a held record in addition to :attr:`Arrival.size` and its trajectory's id."""
TRAJECTORY_BYTES = 870
"""Memory of an open trajectory in addition to its records and twice its id."""
PLACE_BYTES = 150
"""Memory of the sequence number of an unreadable event in addition to its id."""

_NEVER = 1 << 62


class PartitionFold:
    """Folds one partition from the record at ``position`` on. After a restart, ``stream_ms`` and ``written`` (in order)
    come from :mod:`recovery`.
    """

    def __init__(
        self, limits: FoldLimits, *, stream_ms: int = 0, position: int = 0, written: Iterable[Emitted] = ()
    ) -> None:
        self.limits = limits
        self.stream_ms = stream_ms
        self.idle_ms = 0
        """Clock of the idle timeout: milliseconds that counted since the fold began."""
        self.grace_ms = 0
        """Clock of the grace for missing events: milliseconds that counted since the fold began."""
        self.duplicates = 0
        """Records dropped as duplicates."""
        self.held_events = 0
        """Events of open trajectories."""
        self.held_bytes = 0
        """Memory of all open trajectories together."""
        self.closed_count = 0
        """Trajectories closed, including those in ``written``."""
        self._memory = Memory(limits.remember, limits.remember_bytes)
        self._remembered = self._memory.known
        self._ahead: dict[bytes, deque[Emitted]] = {}  # written by a predecessor, closed after the current offset
        self._ahead_in_order: deque[Emitted] = deque()
        self._catch_up_at = _NEVER  # input offset at which the first of them closed
        self._open: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by first record
        self._quiet: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by latest record
        self._ended: OrderedDict[bytes, OpenTrajectory] = OrderedDict()  # by end; wait for missing events
        # No deadline is earlier than this stream time: the timeout clocks never run faster than stream time.
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
        """Number of open trajectories."""
        return len(self._open)

    @property
    def remembered_count(self) -> int:
        """Number of closed trajectories that are remembered."""
        return len(self._remembered)

    @property
    def remembered_bytes(self) -> int:
        """Memory of the remembered trajectories, in bytes."""
        return self._memory.size

    @property
    def needed_count(self) -> int:
        """:attr:`closed_count` at the record from which a restart reads; the restart needs the trajectories that were
        remembered there.
        """
        return next(iter(self._open.values())).closed_before if self._open else self.closed_count

    @property
    def deadline_ms(self) -> int | None:
        """Stream time at which the next trajectory closes if only ticks arrive; ``None`` if none is open."""
        return min((self.stream_ms + left for left, _ in self._deadlines()), default=None)

    @property
    def waits_for_gaps(self) -> bool:
        """Whether an ended trajectory waits for missing events."""
        return bool(self._ended)

    @property
    def oldest_open_ms(self) -> int | None:
        """Stream time before the first record of the oldest open trajectory; ``None`` if none is open."""
        return next(iter(self._open.values())).stream_ms_before if self._open else None

    def resume_point(self, position: int) -> tuple[int, int]:
        """Returns the offset from which a restart must read, and the stream time before that record. ``position`` is
        the next offset.
        """
        if not self._open:
            return position, self.stream_ms
        oldest = next(iter(self._open.values()))
        return oldest.first, oldest.stream_ms_before

    def take_ordinary(self, records: Sequence[LogRecord], start: int) -> int:
        """Fold the ordinary records of the list ``records`` from ``start`` on: each is the first event of a new
        trajectory, or the next event of an open one without gaps, and closes nothing. Returns the index of the first
        record that needs :meth:`arrive`.

        The result is the same as with :meth:`arrive`, but faster. Without the extension module it folds nothing.
        """
        return start if self._ordinary is None else self._ordinary.take(self, records, start)

    def arrive(self, record: LogRecord) -> list[History | UnusableRecord]:
        """Fold the partition's next record. Returns the closed trajectories and the unusable records, in order."""
        out: list[History | UnusableRecord] = []
        if record.offset >= self._catch_up_at:
            self._catch_up(record.offset)
        stream_ms_before = self.stream_ms
        if record.timestamp > stream_ms_before and is_time(record.timestamp):
            gap_ms = record.timestamp - stream_ms_before
            self.stream_ms = record.timestamp
            self.idle_ms += min(gap_ms, self.limits.idle_step_ms)
            self.grace_ms += min(gap_ms, self.limits.grace_step_ms)
            if self.stream_ms >= self._look_at:
                self._close_overdue(record.offset, out)
        arrival = arrival_of(record)
        if arrival.kind == TICK:
            # Nothing decodes it later, so what is unreadable must show now: it may be an event with a wrong type.
            if (problem := problem_of(arrival)) is not None:
                out.append(UnusableRecord(arrival, problem))
            return out
        subject = arrival.subject
        trajectory = self._open.get(subject) if subject is not None else None
        if subject is None or (trajectory is None and not arrival.names_trajectory):
            message = f"header {SUBJECT} is missing, not UTF-8, empty or longer than {MAX_ID_BYTES} bytes"
            out.append(UnusableRecord(arrival, UnreadableRecord(DeadLetterError.BAD_HEADERS, message)))
            return out
        if trajectory is None:
            known = self._known(subject, arrival.offset)
            if known is not None:
                self._recall(arrival, known, out)
                return out
            trajectory = self._start(arrival, subject, stream_ms_before)
        self._quiet.move_to_end(subject)
        trajectory.touch(arrival, self.stream_ms, self.idle_ms)
        self._add(trajectory, subject, arrival, out)
        if self.held_bytes > self.limits.max_open_bytes or len(self._open) > self.limits.max_open or out:
            self._make_room(arrival.offset, out)
        return out

    def _start(self, arrival: Arrival, subject: bytes, stream_ms_before: int) -> OpenTrajectory:
        time_ms = arrival.timestamp if is_time(arrival.timestamp) else self.stream_ms
        trajectory = OpenTrajectory(
            subject.decode(), arrival.partition, arrival.offset, stream_ms_before, time_ms, time_ms, self.closed_count
        )
        trajectory.size = TRAJECTORY_BYTES + 2 * len(subject)
        self.held_bytes += trajectory.size
        self._open[subject] = self._quiet[subject] = trajectory
        self._look_at = min(self._look_at, self.stream_ms + self.limits.idle_timeout_ms)
        return trajectory

    def _add(
        self, trajectory: OpenTrajectory, subject: bytes, arrival: Arrival, out: list[History | UnusableRecord]
    ) -> None:
        """Add an event to its trajectory, and close the trajectory if that completes it."""
        sequence = arrival.sequence
        held = None if sequence is None else trajectory.records.get(sequence)
        if held is not None:
            if ids_differ(arrival.id, held.id):
                trajectory.labels.add(Defect.CONFLICT)
                out.append(UnusableRecord(arrival, _conflict(arrival), trajectory.trajectory_id))
                return
            trajectory.duplicates += 1
            self.duplicates += 1
            return
        if sequence in trajectory.unreadable and ids_differ(arrival.id, trajectory.unreadable[sequence][1]):
            trajectory.labels.add(Defect.CONFLICT)
            out.append(UnusableRecord(arrival, self._problem(arrival) or _conflict(arrival), trajectory.trajectory_id))
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
        self,
        trajectory: OpenTrajectory,
        arrival: Arrival,
        problem: UnreadableRecord,
        out: list[History | UnusableRecord],
    ) -> bool:
        """Label the sequence number of an unusable event; ``False`` if it has none or is already labelled."""
        sequence = arrival.sequence
        if sequence in trajectory.unreadable:
            trajectory.duplicates += 1
            self.duplicates += 1
            return False
        out.append(UnusableRecord(arrival, problem, trajectory.trajectory_id))
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
            self._look_at = min(self._look_at, self.stream_ms + self.limits.hole_grace_ms)
        trajectory.end = sequence if trajectory.end is None else min(trajectory.end, sequence)

    def _problem(self, arrival: Arrival) -> UnreadableRecord | None:
        """Returns why an event cannot be used, as far as that shows on arrival."""
        return problem_with(arrival, self.limits) or evident_problem(arrival)

    def _catch_up(self, offset: int) -> None:
        """Remember the trajectories that a predecessor had closed before the record at ``offset``."""
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
        """Returns the closed trajectory that a record at ``offset`` names, if it is still remembered."""
        ahead = self._ahead.get(subject)
        if ahead is not None and ahead[0].first <= offset:
            return ahead[0].remembered
        return self._remembered.get(subject)

    def _recall(self, arrival: Arrival, known: Remembered, out: list[History | UnusableRecord]) -> None:
        """Handle an event of a closed trajectory. Only for event 0 is the original id still known, so only there can an
        event of another run be told from a duplicate.
        """
        sequence = arrival.sequence
        if sequence is None or not known.holds(sequence):
            late = UnreadableRecord(DeadLetterError.LATE, f"event {sequence} arrived after its trajectory was closed")
            out.append(UnusableRecord(arrival, self._problem(arrival) or late, known.subject.decode()))
        elif sequence == 0 and ids_differ(arrival.id, known.start_id):
            out.append(UnusableRecord(arrival, _conflict(arrival), known.subject.decode()))
        else:
            self.duplicates += 1

    def _deadlines(self) -> Iterator[tuple[int, bytes]]:
        """Yields the milliseconds that remain for the next trajectory of each kind; negative if it is overdue."""
        for subject, trajectory in self._ended.items():
            yield trajectory.ended_at + self.limits.hole_grace_ms - self.grace_ms, subject
            break
        for subject, trajectory in self._quiet.items():
            yield trajectory.quiet_since + self.limits.idle_timeout_ms - self.idle_ms, subject
            break

    def _close_overdue(self, offset: int, out: list[History | UnusableRecord]) -> None:
        while overdue := [entry for entry in self._deadlines() if entry[0] <= 0]:
            # min() returns the first of equal entries: an ended trajectory before an idle one
            self._close(min(overdue, key=itemgetter(0))[1], offset, out)
        deadline = self.deadline_ms
        self._look_at = _NEVER if deadline is None else deadline

    def _make_room(self, offset: int, out: list[History | UnusableRecord]) -> None:
        """Close trajectories until the limits of the whole partition hold, while folding the record at ``offset``."""
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

    def _close_largest(self, offset: int, out: list[History | UnusableRecord]) -> None:
        """Close the largest trajectories, oldest first among equals, until a sixteenth of the memory is free. Searching
        for the largest at every record would take too long.
        """
        enough = self.limits.max_open_bytes - self.limits.max_open_bytes // 16
        for subject in sorted(self._open, key=lambda subject: -self._open[subject].size):
            if self.held_bytes <= enough:
                return
            self._close(subject, offset + 1, out, Defect.OVERSIZE)

    def _close(self, subject: bytes, closed_offset: int, out: list[History | UnusableRecord], *labels: Defect) -> None:
        """Close a trajectory; its records from ``closed_offset`` on are late."""
        trajectory = self._open.pop(subject)
        del self._quiet[subject]
        self._ended.pop(subject, None)
        self.held_bytes -= trajectory.size
        self.held_events -= len(trajectory.records)
        history = trajectory.closed(self.stream_ms, closed_offset, labels)
        out.append(history)
        top = len(history.records) + len(history.unreadable) + count(history.missing) - 1
        self._remember(Remembered(subject, top, history.missing, history.start_id))


def usual_id(id: bytes | None) -> bytes | None:
    """Returns ``id`` if it is a valid event id, else ``None``: an invalid id cannot identify a duplicate."""
    if not id or len(id) > MAX_ID_BYTES:
        return None
    try:
        id.decode()
    except UnicodeDecodeError:
        return None
    return id


def ids_differ(one: bytes | None, other: bytes | None) -> bool:
    """Whether the ids of two events with one sequence number are known and differ."""
    return one != other and one is not None and other is not None


def _conflict(arrival: Arrival) -> UnreadableRecord:
    message = (
        f"another event with sequence number {arrival.sequence} exists: two runs use the same trajectory id. "
        "Give each run its own id"
    )
    return UnreadableRecord(DeadLetterError.CONFLICT, message)
