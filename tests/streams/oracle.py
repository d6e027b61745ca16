"""The expected result of a log, computed from the whole log: the batch that the assembler is compared with.

    expected({0: records, 1: records}, limits)
    → Expected(trajectories={0: [b"{…}", …], 1: […]}, letters={(0, 17): late}, open={0: set(), 1: {"s9"}})

The oracle does not use the fold. It knows the whole log, so for each trajectory it determines when that closes, takes
the records until then, sorts them and drops duplicates. Bounds over all trajectories of a partition (``max_open``,
``max_open_bytes``, ``remember``) are not modelled: a log that would reach one is refused.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from headrace.schemas.bounds import is_time
from headrace.schemas.envelope import ID, SEQUENCE, SUBJECT, TRACEPARENT, TYPE, EnvelopeError, from_headers
from headrace.schemas.events import ClockTicked, TrajectoryEnded
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.topics import EVENTS
from headrace.schemas.trace import parse_traceparent
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.assembly.assemble import MAX_RECORD_BYTES, assemble, trajectory_message
from headrace.streams.assembly.event_decoder import MAX_NESTING
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.gaps import gaps_of
from headrace.streams.assembly.history import Event, History, Unreadable
from headrace.streams.raw import LogRecord

MODELS = {model.TYPE: model for model in EVENTS.models}
TICK, END = ClockTicked.TYPE.encode(), TrajectoryEnded.TYPE.encode()
MAX_ID_BYTES = 512
TRAJECTORY_BYTES, RECORD_BYTES, PLACE_BYTES = 870, 335, 150
"""Counted memory of a trajectory, a record and the sequence number of an unreadable one, in addition to their bytes."""

Letters = dict[tuple[int, int], DeadLetterError]


@dataclass(frozen=True)
class Expected:
    """The expected output."""

    trajectories: dict[int, list[bytes]]
    """Payloads by partition, in the order in which they close."""
    letters: Letters
    """Errors of the records that cannot be used, by partition and offset."""
    open: dict[int, set[str]]
    """Trajectories that are still open at the end of the log, by partition."""


def expected(records_by_partition: Mapping[int, Sequence[LogRecord]], limits: FoldLimits) -> Expected:
    """The expected result of whole partitions, each given from its start in offset order."""
    out = Expected({}, {}, {})
    for partition, records in records_by_partition.items():
        log = Log(records, limits)
        lives = [life_of(subject, indices, log) for subject, indices in by_subject(log, out.letters).items()]
        refuse_what_is_not_modelled(lives, log)
        ended = sorted((life for life in lives if life.closed is not None), key=lambda life: life.order)
        out.trajectories[partition] = [payload(life, log, out.letters) for life in ended]
        out.open[partition] = {life.subject.decode() for life in lives if life.closed is None}
        for life in lives:
            bury_what_was_unusable(life, log, out.letters)
    return out


class Log:
    """A whole partition."""

    def __init__(self, records: Sequence[LogRecord], limits: FoldLimits) -> None:
        self.records = records
        self.limits = limits
        self.now: list[int] = []
        """Stream time at each record: the latest timestamp so far."""
        self.idle: list[int] = []
        """Time that counts for the idle timeout by then: at most a tenth of the timeout, or a second, of each gap."""
        self.grace: list[int] = []
        """The same for the grace period of gaps."""
        self.arrivals = [arrival_of(record, limits) for record in records]
        for record in records:
            now = self.now[-1] if self.now else 0
            self.now.append(max(record.timestamp, now) if is_time(record.timestamp) else now)
        gaps = [now - before for before, now in pairwise([0, *self.now])]
        for clock, timeout in ((self.idle, limits.idle_timeout_ms), (self.grace, limits.hole_grace_ms)):
            clock += accumulate(min(gap, timeout, max(timeout // 10, 1000)) for gap in gaps)

    def time_of(self, index: int) -> int:
        """When a record came: its timestamp or, if that is out of bounds, stream time."""
        timestamp = self.records[index].timestamp
        return timestamp if is_time(timestamp) else self.now[index]


@dataclass(frozen=True)
class Arrival:
    """The parts of a record that are known without decoding it."""

    number: int | None
    """Its sequence number."""
    error: DeadLetterError | None
    """Its error."""
    id: bytes | None
    """Its own id."""
    size: int
    """Bytes of key, payload and headers, and eight a header."""
    ends: bool
    """Whether it is a trajectory's end, with its sequence number."""


@dataclass(eq=False)
class Life:
    """One trajectory: the records that name it, and when it closes."""

    subject: bytes
    while_open: list[int] = field(default_factory=list)
    """Indices of the records that came while it was open."""
    after: list[int] = field(default_factory=list)
    """Indices of the records that came once it was closed."""
    closed: int | None = None
    """Index of the record at which it closed."""
    order: tuple[int, ...] = ()
    """Sort key for the order in which a partition's trajectories close."""
    closed_offset: int = -1
    """Index from which on its records are late."""
    too_large: bool = False
    size: int = 0


def by_subject(log: Log, letters: Letters) -> dict[bytes, list[int]]:
    """Indices of the records that name each trajectory. A tick names none, and is unusable if it cannot be decoded; an
    event that names none is unusable."""
    named: dict[bytes, list[int]] = {}
    for index, record in enumerate(log.records):
        headers = dict(record.headers)
        subject = headers.get(SUBJECT) or b""
        if headers.get(TYPE) == TICK:
            try:
                event_of(record)
            except UnreadableRecord as error:
                letters[record.partition, record.offset] = error.error
            continue
        if 0 < len(subject) <= MAX_ID_BYTES and is_utf8(subject):
            named.setdefault(subject, []).append(index)
        else:
            letters[record.partition, record.offset] = DeadLetterError.BAD_HEADERS
    return named


def life_of(subject: bytes, indices: Sequence[int], log: Log) -> Life:
    """Determine when the trajectory closes: complete, too large, or timed out."""
    life = Life(subject)
    limits = log.limits
    for place, index in enumerate(indices):
        if place and overdue(life, log) <= index:
            life.after = list(indices[place:])
            break
        life.while_open.append(index)
        content = Content(life, log)
        life.size = content.size
        complete = content.end is not None and not content.missing
        life.too_large = not complete and (content.size > limits.max_trajectory_bytes or content.gaps > limits.max_gaps)
        if complete or life.too_large:
            life.closed, life.order = index, (index, 1)
            life.closed_offset = log.records[index].offset + 1
            life.after = list(indices[place + 1 :])
            return life
    closing = overdue(life, log)
    if closing < len(log.records):
        left = min((deadline - clock[closing], kind, since) for clock, deadline, kind, since in deadlines_of(life, log))
        life.closed, life.order = closing, (closing, 0, *left)
        life.closed_offset = log.records[closing].offset
    return life


def deadlines_of(life: Life, log: Log) -> list[tuple[list[int], int, int, int]]:
    """When it closes if no other record comes: a clock, the time by it, whether for silence, the index since when."""
    since = life.while_open[-1]
    silence = (log.idle, log.idle[since] + log.limits.idle_timeout_ms, 1, since)
    ends = [index for index in life.while_open if log.arrivals[index].ends]
    content = Content(life, log)
    first_end = next((index for index in ends if index not in content.doubles | content.conflicts), None)
    if first_end is None:
        return [silence]
    return [silence, (log.grace, log.grace[first_end] + log.limits.hole_grace_ms, 0, first_end)]


def overdue(life: Life, log: Log) -> int:
    """Index of the record at whose arrival it times out."""
    return min(bisect_left(clock, deadline) for clock, deadline, _, _ in deadlines_of(life, log))


class Content:
    """The records of a trajectory that arrived while it was open."""

    def __init__(self, life: Life, log: Log) -> None:
        self.readable: dict[int, int] = {}
        """Sequence number → index of the first usable record."""
        self.spoiled: dict[int, Defect] = {}
        """Sequence number → label, if only unusable records came."""
        self.spoiled_ids: dict[int, bytes | None] = {}
        """Sequence number → ID of the unusable record, if it has an ordinary one."""
        self.labels: set[Defect] = set()
        """Labels from unusable records without a sequence number."""
        self.doubles: set[int] = set()
        """Indices of the records whose sequence number was taken."""
        self.conflicts: set[int] = set()
        """Indices of the records whose sequence number was taken by an event with another ID."""
        self.unusable: dict[int, DeadLetterError] = {}
        """Errors of unusable records, by index."""
        self.size = TRAJECTORY_BYTES + 2 * len(life.subject)
        numbers_of_ends = []
        for index in life.while_open:
            arrival = log.arrivals[index]
            number, error = arrival.number, arrival.error
            if number in self.readable:
                first = log.arrivals[self.readable[number]].id
                if None not in (first, arrival.id) and first != arrival.id:
                    self.unusable[index] = DeadLetterError.CONFLICT
                    self.labels.add(Defect.CONFLICT)
                    self.conflicts.add(index)
                    continue
            before = self.spoiled_ids.get(number) if number in self.spoiled else None
            if None not in (before, arrival.id) and before != arrival.id:
                self.unusable[index] = error or DeadLetterError.CONFLICT
                self.labels.add(Defect.CONFLICT)
                self.conflicts.add(index)
                continue
            if number in self.readable or (error and number in self.spoiled):
                self.doubles.add(index)
                continue
            if error:
                self.unusable[index] = error
            label = Defect.OVERSIZE if error is DeadLetterError.OVERSIZE else Defect.BAD_EVENT
            if number is None or number >= log.limits.max_trajectory_events:
                self.labels.add(label)
                continue
            if error:
                self.spoiled[number] = label
                own = arrival.id or b""
                is_text = own.decode(errors="replace").encode() == own
                self.spoiled_ids[number] = own if is_text and 0 < len(own) <= MAX_ID_BYTES else None
            else:
                self.spoiled.pop(number, None)
                self.readable[number] = index
            if error:
                self.size += PLACE_BYTES + len(self.spoiled_ids[number] or b"")
            else:
                self.size += RECORD_BYTES + arrival.size + len(life.subject)
            if arrival.ends:
                numbers_of_ends.append(number)
        there = self.readable.keys() | self.spoiled.keys()
        self.end = min(numbers_of_ends, default=None)
        self.top = max(there, default=-1) if self.end is None else self.end
        self.gaps = sum(number - 1 not in there for number in there) - (0 in there)
        """Gaps below the highest number, beyond the end or not."""
        self.missing = [number for number in range(self.top + 1) if number not in there]

    def start_id(self, log: Log) -> bytes | None:
        """The ID of event 0, if present and of ordinary length."""
        found = log.arrivals[self.readable[0]].id if 0 in self.readable else None
        return found if found is not None and len(found) <= MAX_ID_BYTES else None


def payload(life: Life, log: Log, letters: Letters) -> bytes:
    """The trajectory's record, and dead letters for its events that cannot be decoded or follow its end."""
    content = Content(life, log)
    assert life.closed is not None
    named = [log.records[index] for index in life.while_open]
    spoiled = {number: label for number, label in sorted(content.spoiled.items()) if number <= content.top}
    labels = content.labels | set(spoiled.values())
    labels |= {Defect.MISSING_EVENTS} if content.missing else set()
    labels |= {Defect.NO_END} if content.end is None else set()
    labels |= {Defect.OVERSIZE} if life.too_large else set()
    events: list[Event | Unreadable] = []
    for number, index in sorted(content.readable.items()):
        record = log.records[index]
        if number > content.top:
            letters[record.partition, record.offset] = DeadLetterError.LATE
            continue
        try:
            events.append(event_of(record))
        except UnreadableRecord as error:
            letters[record.partition, record.offset] = error.error
            events.append(Unreadable(number))
    history = History(
        trajectory_id=life.subject.decode(),
        records={},
        unreadable=spoiled,
        missing=gaps_of((number, number + 1) for number in content.missing),
        late=(),
        labels=frozenset(labels),
        duplicates=len(content.doubles),
        first=Reference(partition=named[0].partition, offset=named[0].offset),
        last=Reference(partition=named[-1].partition, offset=named[-1].offset),
        first_ms=min(map(log.time_of, life.while_open)),
        last_ms=max(map(log.time_of, life.while_open)),
        closed_ms=log.now[life.closed],
        closed_offset=life.closed_offset,
        start_id=content.start_id(log),
    )
    traces = [
        context.traceparent
        for number, index in sorted(content.readable.items())
        if number <= content.top
        and (
            context := parse_traceparent(
                (dict(log.records[index].headers).get(TRACEPARENT) or b"").decode(errors="replace")
            )
        )
    ]
    trajectory = assemble(events, history).model_copy(update={"traceparent": next(iter(traces), None)})
    value = trajectory_message(trajectory, history.closed_ms).value
    if len(value) > MAX_RECORD_BYTES:
        raise ValueError("a trajectory beyond MAX_RECORD_BYTES: the oracle does not model that")
    return value


def bury_what_was_unusable(life: Life, log: Log, letters: Letters) -> None:
    """Dead letters for records that are unusable on arrival and for late ones."""
    content = Content(life, log)
    for index, error in content.unusable.items():
        letters[log.records[index].partition, log.records[index].offset] = error
    for index in life.after:
        record, number = log.records[index], log.arrivals[index].number
        known = number is not None and number <= content.top and number not in content.missing
        start, own = content.start_id(log), log.arrivals[index].id
        if known and number == 0 and None not in (start, own) and start != own:
            letters[record.partition, record.offset] = DeadLetterError.CONFLICT
        if not known:
            letters[record.partition, record.offset] = log.arrivals[index].error or DeadLetterError.LATE


def refuse_what_is_not_modelled(lives: Sequence[Life], log: Log) -> None:
    """Raise ``ValueError`` if a bound over all trajectories of the partition would be reached."""
    ended = [life for life in lives if life.closed is not None]
    changes = [(life.while_open[0], 1, life.size) for life in lives]
    changes += [(life.closed or 0, -1, -life.size) for life in ended]
    count = size = 0
    for _, one, more in sorted(changes):
        count, size = count + one, size + more
        if count >= log.limits.max_open or size > log.limits.max_open_bytes:
            raise ValueError("max_open or max_open_bytes would be reached")
    if len(ended) > log.limits.remember:
        raise ValueError("more trajectories than are remembered")


def arrival_of(record: LogRecord, limits: FoldLimits) -> Arrival:
    """Check a record's headers and size."""
    headers = dict(record.headers)
    kind, text = headers.get(TYPE), headers.get(SEQUENCE) or b""
    number = int(text) if text.isdigit() and len(text) <= 18 else None
    size = len(record.key or b"") + len(record.value or b"")
    size += sum(8 + len(name.encode()) + len(content or b"") for name, content in record.headers)
    error = None
    if kind is None or number is None:
        error = DeadLetterError.BAD_HEADERS
    elif number >= limits.max_trajectory_events:
        error = DeadLetterError.OVERSIZE
    elif kind.decode(errors="replace") not in MODELS:
        error = DeadLetterError.UNKNOWN_TYPE
    elif not is_time(record.timestamp):
        error = DeadLetterError.BAD_TIME
    elif record.value is None:
        error = DeadLetterError.NULL_VALUE
    elif size > limits.max_event_bytes:
        error = DeadLetterError.OVERSIZE
    elif not (record.value.startswith(b"{") and record.value.endswith(b"}")) or not is_enveloped(record):
        try:
            event_of(record)
        except UnreadableRecord as problem:
            error = problem.error
    return Arrival(
        number,
        error,
        headers.get(ID),
        size,
        kind == END and number is not None and number < limits.max_trajectory_events,
    )


def event_of(record: LogRecord) -> Event:
    """Decode one event with the models themselves."""
    envelope, fact = decode(record.headers, record.value, MODELS)
    if depth(json.loads(record.value or b"")) > MAX_NESTING:
        raise UnreadableRecord(DeadLetterError.INVALID, "nested too deep")
    return Event(envelope.time_ms, fact)  # type: ignore[arg-type]  # MODELS are the facts


def is_enveloped(record: LogRecord) -> bool:
    try:
        from_headers(record.headers)
    except EnvelopeError:
        return False
    return True


def depth(value: Any) -> int:
    """How deep JSON is nested; 0 for a number or a text."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
