"""What is sent when a dead letter is sent again. Pure; :mod:`headrace.streams.letters.redriver` reads and sends.

| a dead letter …                                    | is sent again as …                                         |
|----------------------------------------------------|------------------------------------------------------------|
| of a record that only ClickHouse could not store   | nothing: the processors have taken it                      |
| that today's code cannot read either               | nothing: it must be repaired first                         |
| of a derived topic (``trajectories``, ``rewards`` …) | itself: ids are derived and processors idempotent        |
| of ``events``, its trajectory still open           | itself: it takes its place, which is still unreadable      |
| of ``events``, its trajectory closed               | a whole new trajectory: all its events, this one in place  |

A closed trajectory keeps its fate: alone, the event would only be late again. The new one has an id that follows from
the old one's and from the repaired bytes, so the same repair sent twice is one trajectory. It counts as one more that
was started, and comes late for its group.
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
from headrace.streams.letters.letter_box import Letter
from headrace.streams.letters.repair import SOURCE, Content, content_of, readable
from headrace.streams.raw import LogRecord


@dataclass(frozen=True, slots=True)
class Resent:
    """A record to be sent."""

    topic: Topic
    """Where to."""
    content: Content
    """Key, value and headers."""
    partition: int | None
    """Where the original stood; ``None`` leaves it to the key."""
    timestamp_ms: int | None
    """Log time for derived topics; ``None`` is now, as for any new event."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """What becomes of one or more dead letters: all of it is sent, or nothing."""

    letters: tuple[Letter, ...]
    """The letters that are sent again by it."""
    records: tuple[Resent, ...]
    """What is sent."""
    done: tuple[Redriven, ...]
    """What ``dead-letters`` is told, a record a letter."""
    still_missing: tuple[int, ...] = ()
    """Events that never came: the new trajectory is labelled for them as the old one was."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A dead letter that is not sent again, and why."""

    letter: Letter
    """The letter."""
    why: str
    """A sentence, with what to do where something can be done."""
    was_done: bool = False
    """Whether it was sent again before, just so."""


Plan: TypeAlias = Redrive | Refusal


@dataclass(frozen=True, slots=True)
class Closed:
    """What ``trajectories`` says of a trajectory that was closed."""

    first: Reference
    """First of its events."""
    last: Reference
    """Last of its events."""
    had: frozenset[int]
    """Sequence numbers of events that it was made of."""
    unreadable: frozenset[int]
    """Those that came and could not be read."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Closed":
        """As ``trajectory`` says."""
        unreadable = frozenset(trajectory.unreadable)
        had = set(range(trajectory.events + trajectory.never_arrived + len(unreadable))) - unreadable
        for start, end in trajectory.gaps:
            had.difference_update(range(start, end))
        return cls(trajectory.first, trajectory.last, frozenset(had), unreadable)


def taken_already(letter: Letter) -> Refusal | None:
    """That a letter is not to be sent again, since its record was read and processed where it stands."""
    if letter.dead.error is not DeadLetterError.UNSTORABLE:
        return None
    why = (
        "the processors have taken this record, and only ClickHouse has no row of it: sent again it would count twice. "
        "Once the table can hold it, a sink with a new `group` fills the tables again from the log"
    )
    return Refusal(letter, why)


def redrive_alone(letter: Letter) -> Plan:
    """Send ``letter``'s record itself: one of a derived topic, or an event whose trajectory is still open."""
    try:
        topic = topic_named(letter.dead.topic)
        readable(topic.name, letter.content)
    except KeyError as error:
        return Refusal(letter, str(error.args[0]))
    except UnreadableRecord as error:
        return Refusal(letter, f"{error.error}: {error}; repair it first")
    content = letter.content
    moved = topic is EVENTS and content.subject != content_of(letter.dead).subject
    if topic is EVENTS:
        content = Content((content.subject or "").encode(), content.value, content.headers)
    record = Resent(
        topic,
        content.with_headers([(REDRIVE, _mark(letter))]),
        None if moved else letter.dead.partition,
        None if topic is EVENTS else letter.dead.timestamp_ms,
    )
    done = _done(letter, content.subject if topic is EVENTS else letter.dead.trajectory_id)
    if done in letter.redriven:
        return Refusal(letter, "it was sent again before, just so", was_done=True)
    return Redrive((letter,), (record,), (done,))


def redrive_trajectory(
    trajectory_id: str,
    selected: Sequence[Letter],
    siblings: Iterable[Letter],
    closed: Closed,
    records: Iterable[LogRecord],
) -> list[Plan]:
    """Send a closed trajectory again as a new one, with ``selected`` and its other readable letters in their places.

    ``siblings`` are all letters of the trajectory, ``records`` all records of ``events`` that name it, from
    ``closed.first`` to ``closed.last``.
    """
    siblings = tuple(siblings)
    problems = {letter.name: _problem(letter, closed) for letter in siblings}
    mended = _by_sequence(letter for letter in siblings if problems[letter.name] is None)
    places = {(letter.dead.partition, letter.dead.offset) for letter in mended.values()}
    events = _events(records, places) | {sequence: letter.content for sequence, letter in mended.items()}
    end = min((number for number, content in events.items() if _is_end(content)), default=max(events, default=-1))
    absent = frozenset(range(end + 1)) - events.keys()
    broken = [letter.name for letter in siblings if problems[letter.name] and letter.content.sequence in absent]
    gap = _gap(closed, absent, broken)

    def why_not(letter: Letter) -> str | None:
        sequence = letter.content.sequence
        if problems[letter.name] is not None or sequence is None:
            return problems[letter.name]
        if sequence > end:
            return f"it is event {sequence}, and its trajectory ends with event {end}"
        other = mended[sequence]
        return f"{other.name} takes its place, event {sequence}" if other.name != letter.name else gap

    refused = [Refusal(letter, why) for letter in selected if (why := why_not(letter)) is not None]
    if len(refused) == len(selected):
        return list(refused)
    events = {number: content for number, content in sorted(events.items()) if number <= end}
    used = {number: letter for number, letter in mended.items() if number <= end}
    return [*refused, _whole(trajectory_id, used, events, sorted(absent))]


def _whole(
    trajectory_id: str, used: Mapping[int, Letter], events: Mapping[int, Content], missing: Sequence[int]
) -> Plan:
    """All ``events`` under a new id; ``used`` are the letters among them."""
    hashes = "".join(used[number].content.sha256 for number in sorted(used))
    new_id = derived_id("redrive", trajectory_id, hashlib.sha256(hashes.encode()).hexdigest())
    letters = tuple(used.values())
    done = tuple(_done(letter, new_id, trajectory_id, len(events)) for letter in letters)
    if all(note in letter.redriven for letter, note in zip(letters, done, strict=True)):
        return Refusal(letters[0], "it was sent again before, just so", was_done=True)
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
    return Redrive(letters, tuple(records), done, tuple(missing))


def done_message(done: Redriven, time_ms: int) -> Message:
    """``done`` as a record of ``dead-letters``."""
    place = f"{done.topic}:{done.partition}"
    return record_message(
        done,
        id=derived_id(Redriven.TYPE, place, done.offset, done.sha256, done.trajectory_id or "", done.redrive_of or ""),
        key=place,
        source=SOURCE,
        time_ms=time_ms,
        subject=done.trajectory_id or f"{place}:{done.offset}",
    )


def _problem(letter: Letter, closed: Closed) -> str | None:
    """Why ``letter`` cannot be an event of the new trajectory; ``None`` where it can."""
    try:
        envelope, _ = readable(EVENTS.name, letter.content)
    except UnreadableRecord as error:
        return f"{error.error}: {error}; repair it first"
    if envelope.sequence in closed.had:
        return f"its trajectory has an event {envelope.sequence} that could be read"
    return None


def _gap(closed: Closed, absent: Set[int], broken: Sequence[str]) -> str | None:
    """Why the new trajectory would lack what the old one had; ``None`` where it lacks nothing but what never came."""
    if broken:
        return f"{', '.join(broken)} of its trajectory cannot be read either: repair that first"
    gone = sorted(absent & (closed.had | closed.unreadable))
    if gone:
        named = ", ".join(map(str, gone[:10])) + (" …" if len(gone) > 10 else "")
        return f"events {named} of its trajectory are no longer in the log"
    return None


def _by_sequence(letters: Iterable[Letter]) -> dict[int, Letter]:
    """Letters by the place they take: repaired ones before others, later ones before earlier ones."""
    found: dict[int, Letter] = {}
    for letter in sorted(letters, key=lambda letter: letter.repair is not None):
        found[letter.content.sequence or 0] = letter
    return found


def _events(records: Iterable[LogRecord], mended: set[tuple[int, int]]) -> dict[int, Content]:
    """The first readable record of each sequence number; those at the places ``mended`` are left out."""
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


def _mark(letter: Letter) -> bytes:
    return f"{DEAD_LETTERS.name}:{letter.name}".encode()


def _done(letter: Letter, trajectory_id: str | None, redrive_of: str | None = None, records: int = 1) -> Redriven:
    return Redriven(
        topic=letter.dead.topic,
        partition=letter.dead.partition,
        offset=letter.dead.offset,
        sha256=letter.content.sha256,
        trajectory_id=trajectory_id,
        redrive_of=redrive_of,
        records=records,
    )
