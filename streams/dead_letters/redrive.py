"""Plans which records a redrive sends. Pure; :mod:`headrace.streams.dead_letters.redriver` reads and sends.

| a dead letter …                                    | is sent again as …                                         |
|----------------------------------------------------|------------------------------------------------------------|
| of a record that only ClickHouse could not store   | nothing: the processors have already processed it          |
| that the current code cannot read either           | nothing: it must be repaired first                         |
| of a derived topic (``trajectories``, ``rewards`` …) | itself: ids are derived and processors idempotent        |
| of ``events``, its trajectory still open           | itself: it replaces the unreadable event                   |
| of ``events``, its trajectory closed               | a new trajectory: all events, the repaired one among them  |

The outcome of a closed trajectory never changes: sent alone, the event would only be late again. The id of the new
trajectory is derived from the old id and the repaired bytes, so sending the same repair twice gives one trajectory. It
counts as an additional started trajectory and arrives late for its group.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from headrace.schemas.envelope import ID, SUBJECT
from headrace.schemas.events import TrajectoryEnded
from headrace.schemas.headers import REDRIVE, REDRIVE_OF
from headrace.schemas.ids import derived_id
from headrace.schemas.records.dead_letter import DeadLetterError, Redriven
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, Topic, topic_named
from headrace.schemas.wire import Message, UnreadableRecord, record_message
from headrace.streams.dead_letters.queue import DeadLetterEntry
from headrace.streams.dead_letters.repair import SOURCE, Content, content_of, readable
from headrace.streams.raw import LogRecord


@dataclass(frozen=True, slots=True)
class Resent:
    """A record to send."""

    topic: Topic
    """Its topic."""
    content: Content
    """Key, value and headers."""
    partition: int | None
    """Partition of the original; ``None`` lets the key choose."""
    timestamp_ms: int | None
    """Stream time for derived topics, Unix milliseconds; ``None`` means now, as for any new event."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """The records that redrive one or more dead letters, sent atomically."""

    entries: tuple[DeadLetterEntry, ...]
    """The dead letters that it redrives."""
    records: tuple[Resent, ...]
    """The records to send."""
    done: tuple[Redriven, ...]
    """The records for ``dead-letters``, one per entry."""
    still_missing: tuple[int, ...] = ()
    """Sequence numbers that never arrived; the new trajectory is labelled for them as the old one was."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A dead letter that is not sent again, with the reason."""

    entry: DeadLetterEntry
    """The dead letter."""
    why: str
    """A sentence with the reason, and the remedy if there is one."""
    was_done: bool = False
    """Whether the same content was sent before."""


Plan: TypeAlias = Redrive | Refusal


@dataclass(frozen=True, slots=True)
class Closed:
    """The extent of a closed trajectory, from its record in ``trajectories``."""

    first: Reference
    """First of its events."""
    last: Reference
    """Last of its events."""
    had: frozenset[int]
    """Sequence numbers of the events that it contains."""
    unreadable: frozenset[int]
    """Sequence numbers of events that arrived and could not be read."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Closed":
        """Returns the extent of ``trajectory``."""
        unreadable = frozenset(trajectory.unreadable)
        had = set(range(trajectory.events + trajectory.never_arrived + len(unreadable))) - unreadable
        for start, end in trajectory.gaps:
            had.difference_update(range(start, end))
        return cls(trajectory.first, trajectory.last, frozenset(had), unreadable)


def taken_already(entry: DeadLetterEntry) -> Refusal | None:
    """Returns a refusal if the processors have already processed the record of ``entry``; else ``None``."""
    if entry.dead_letter.error is not DeadLetterError.UNSTORABLE:
        return None
    why = (
        "the processors have processed this record, and only ClickHouse lacks its row: sent again, it would count "
        "twice. Once the table can hold it, a sink with a new `group` fills the tables again from Kafka"
    )
    return Refusal(entry, why)


def redrive_alone(entry: DeadLetterEntry) -> Plan:
    """Plan to send the record of ``entry`` itself: one of a derived topic, or an event of an open trajectory."""
    try:
        topic = topic_named(entry.dead_letter.topic)
        readable(topic.name, entry.content)
    except KeyError as error:
        return Refusal(entry, str(error.args[0]))
    except UnreadableRecord as error:
        return Refusal(entry, f"{error.error}: {error}; repair it first")
    content = entry.content
    moved = topic is EVENTS and content.subject != content_of(entry.dead_letter).subject
    if topic is EVENTS:
        content = Content((content.subject or "").encode(), content.value, content.headers)
    record = Resent(
        topic,
        content.with_headers([(REDRIVE, _mark(entry))]),
        None if moved else entry.dead_letter.partition,
        None if topic is EVENTS else entry.dead_letter.timestamp_ms,
    )
    done = _done(entry, content.subject if topic is EVENTS else entry.dead_letter.trajectory_id)
    if done in entry.redriven:
        return Refusal(entry, "the same content was sent before", was_done=True)
    return Redrive((entry,), (record,), (done,))


def redrive_trajectory(
    trajectory_id: str,
    selected: Sequence[DeadLetterEntry],
    siblings: Iterable[DeadLetterEntry],
    closed: Closed,
    records: Iterable[LogRecord],
) -> list[Plan]:
    """Plan to send a closed trajectory again as a new one, with ``selected`` and its other readable dead letters.

    ``siblings`` are all dead letters of the trajectory, ``records`` all records of ``events`` that name it, from
    ``closed.first`` to ``closed.last``.
    """
    siblings = tuple(siblings)
    problems = {entry.name: _problem(entry, closed) for entry in siblings}
    mended = _by_sequence(entry for entry in siblings if problems[entry.name] is None)
    places = {(entry.dead_letter.partition, entry.dead_letter.offset) for entry in mended.values()}
    events = _events(records, places) | {sequence: entry.content for sequence, entry in mended.items()}
    end = min((number for number, content in events.items() if _is_end(content)), default=max(events, default=-1))
    absent = frozenset(range(end + 1)) - events.keys()
    broken = [entry.name for entry in siblings if problems[entry.name] and entry.content.sequence in absent]
    gap = _gap(closed, absent, broken)

    def why_not(entry: DeadLetterEntry) -> str | None:
        sequence = entry.content.sequence
        if problems[entry.name] is not None or sequence is None:
            return problems[entry.name]
        if sequence > end:
            return f"it is event {sequence}, and its trajectory ends with event {end}"
        other = mended[sequence]
        return f"{other.name} is used for event {sequence} instead" if other.name != entry.name else gap

    refused = [Refusal(entry, why) for entry in selected if (why := why_not(entry)) is not None]
    if len(refused) == len(selected):
        return list(refused)
    events = {number: content for number, content in sorted(events.items()) if number <= end}
    used = {number: entry for number, entry in mended.items() if number <= end}
    return [*refused, _whole(trajectory_id, used, events, sorted(absent))]


def _whole(
    trajectory_id: str, used: Mapping[int, DeadLetterEntry], events: Mapping[int, Content], missing: Sequence[int]
) -> Plan:
    """Plan to send all ``events`` under a new id; ``used`` are the dead letters among them."""
    hashes = "".join(used[number].content.sha256 for number in sorted(used))
    new_id = derived_id("redrive", trajectory_id, hashlib.sha256(hashes.encode()).hexdigest())
    entries = tuple(used.values())
    done = tuple(_done(entry, new_id, trajectory_id, len(events)) for entry in entries)
    if all(note in entry.redriven for entry, note in zip(entries, done, strict=True)):
        return Refusal(entries[0], "the same content was sent before", was_done=True)
    records = []
    for number, content in events.items():
        event_id = (content.header(ID) or b"").decode()
        changes = [
            (SUBJECT, new_id.encode()),
            (ID, derived_id("redrive", event_id, new_id).encode()),
            (REDRIVE_OF, trajectory_id.encode()),
        ]
        if number in used:
            changes.append((REDRIVE, _mark(used[number])))
        moved = Content(new_id.encode(), content.value, content.headers).with_headers(changes)
        records.append(Resent(EVENTS, moved, None, None))
    return Redrive(entries, tuple(records), done, tuple(missing))


def done_message(done: Redriven, time_ms: int) -> Message:
    """Returns ``done`` as a record of ``dead-letters``."""
    place = f"{done.topic}:{done.partition}"
    return record_message(
        done,
        id=derived_id(Redriven.TYPE, place, done.offset, done.sha256, done.trajectory_id or "", done.redrive_of or ""),
        key=place,
        source=SOURCE,
        time_ms=time_ms,
        subject=done.trajectory_id or f"{place}:{done.offset}",
    )


def _problem(entry: DeadLetterEntry, closed: Closed) -> str | None:
    """Returns why ``entry`` cannot be an event of the new trajectory; ``None`` if it can."""
    try:
        envelope, _ = readable(EVENTS.name, entry.content)
    except UnreadableRecord as error:
        return f"{error.error}: {error}; repair it first"
    if envelope.sequence in closed.had:
        return f"its trajectory already has a readable event {envelope.sequence}"
    return None


def _gap(closed: Closed, absent: Set[int], broken: Sequence[str]) -> str | None:
    """Returns why the new trajectory would lack events of the old one; ``None`` if it lacks only missing events."""
    if broken:
        return f"{', '.join(broken)} of its trajectory cannot be read either: repair that first"
    gone = sorted(absent & (closed.had | closed.unreadable))
    if gone:
        named = ", ".join(map(str, gone[:10])) + (" …" if len(gone) > 10 else "")
        return f"events {named} of its trajectory are no longer in the log"
    return None


def _by_sequence(entries: Iterable[DeadLetterEntry]) -> dict[int, DeadLetterEntry]:
    """Returns dead letters by sequence number: repaired ones win over others, later ones over earlier ones."""
    found: dict[int, DeadLetterEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.repair is not None):
        found[entry.content.sequence or 0] = entry
    return found


def _events(records: Iterable[LogRecord], mended: set[tuple[int, int]]) -> dict[int, Content]:
    """Returns the first readable record of each sequence number, without those at the positions ``mended``."""
    found: dict[int, Content] = {}
    for record in records:
        content = Content(record.key, record.value, tuple(record.headers))
        sequence = content.sequence
        if sequence is None or sequence in found or (record.partition, record.offset) in mended:
            continue
        try:
            readable(EVENTS.name, content)
        except UnreadableRecord:
            continue
        found[sequence] = content
    return found


def _is_end(content: Content) -> bool:
    envelope, _ = readable(EVENTS.name, content)
    return envelope.type == TrajectoryEnded.TYPE


def _mark(entry: DeadLetterEntry) -> bytes:
    return f"{DEAD_LETTERS.name}:{entry.name}".encode()


def _done(
    entry: DeadLetterEntry, trajectory_id: str | None, redrive_of: str | None = None, records: int = 1
) -> Redriven:
    return Redriven(
        topic=entry.dead_letter.topic,
        partition=entry.dead_letter.partition,
        offset=entry.dead_letter.offset,
        sha256=entry.content.sha256,
        trajectory_id=trajectory_id,
        redrive_of=redrive_of,
        records=records,
    )
