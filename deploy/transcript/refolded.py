"""A trajectory folded again from its events in ClickHouse, whose payloads have the tokens. Pure.

StoredEvent(type="headrace.model.called.v1", seq=1, time_ms=…, place=(2, 17), payload=b'{"sampled_ids": …}')  …
→ the Trajectory that assemble wrote, and what its turns do not name:
Note(turn=3, kind=SUMMARY, text="The library is in lib/, tests fail in …")
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    ModelCalled,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    TrajectoryEnded,
)
from headrace.schemas.model import Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import UnreadableRecord, decode_payload
from headrace.streams.assembly.assemble import assemble
from headrace.streams.assembly.gaps import NO_GAPS
from headrace.streams.assembly.history import Event, History, Unreadable

_MODELS = {model.TYPE: model for model in EVENTS.models}


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A row of the table `events`."""

    type: str
    """Type with version."""
    seq: int
    """Position in the trajectory, from 0."""
    time_ms: int
    """Time of the event, Unix milliseconds."""
    place: tuple[int, int]
    """Partition and offset in the topic."""
    payload: bytes
    """The event as JSON."""


class NoteKind(StrEnum):
    """What a note is about."""

    SUMMARY = "summary"
    PRUNE = "prune"
    SUBAGENT = "subagent"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened in a turn, as far as the turn does not say it."""

    turn: int
    """Index of the turn."""
    kind: NoteKind
    """What it is."""
    text: str
    """The summary's text, or what changed, in words."""
    trajectory_id: str = ""
    """Of a sub-agent: its trajectory."""


@dataclass(frozen=True, slots=True)
class Refolded:
    """A trajectory with its notes."""

    trajectory: Trajectory
    """As assembled, except for what only the log knows: gaps, duplicates, labels of how it closed."""
    is_open: bool
    """Whether its end has not been stored yet."""
    notes: list[Note] = field(default_factory=list)
    """In the order of the events."""


def refolded(trajectory_id: str, events: Sequence[StoredEvent]) -> Refolded | None:
    """Returns the trajectory of ``events``, which ascend by sequence number, each number once; ``None`` without any.

    An event that cannot be read is a label of the trajectory, as in the assembler. Events after the end are left out.
    """
    if not events:
        return None
    found: list[Event | Unreadable] = []
    notes: list[Note] = []
    turns, ended = 0, False
    for each in events:
        try:
            fact = decode_payload(each.type, each.payload, _MODELS)
        except UnreadableRecord:
            found.append(Unreadable(each.seq))
            continue
        found.append(Event(each.time_ms, fact))  # type: ignore[arg-type]  # the models of the topic are facts
        turns += isinstance(fact, ModelCalled)
        if isinstance(fact, ToolCalled | ContextPruned | ContextSummarized):
            turns = max(turns, 1)  # what comes before the first call is a turn of its own
        if (note := note_of(fact, max(turns - 1, 0))) is not None:
            notes.append(note)
        if isinstance(fact, TrajectoryEnded):
            ended = True
            break
    times = [each.time_ms for each in events]
    first, last = (Reference(partition=each.place[0], offset=each.place[1]) for each in (events[0], events[-1]))
    history = History(
        trajectory_id=trajectory_id,
        records={},
        unreadable={},
        missing=NO_GAPS,
        late=(),
        labels=frozenset(),
        duplicates=0,
        first=first,
        last=last,
        first_ms=min(times),
        last_ms=max(times),
        closed_ms=max(times),
        closed_offset=last.offset + 1,
    )
    return Refolded(assemble(found, history), not ended, notes)


def note_of(fact: Record, turn: int) -> Note | None:
    """Returns what the event ``fact`` says beside turn ``turn``; ``None`` if the turn says it all."""
    match fact:
        case ContextSummarized():
            text = fact.summary or "The text of the summary was not recorded."
            return Note(turn, NoteKind.SUMMARY, f"{fact.tokens_before:,} → {fact.tokens_after:,} tokens\n{text}")
        case ContextPruned():
            pieces = f"{len(fact.pruned_ids):,} piece{'' if len(fact.pruned_ids) == 1 else 's'}"
            names = ", ".join(fact.pruned_ids[:20]) + (" …" if len(fact.pruned_ids) > 20 else "")
            text = f"{pieces} removed, {fact.tokens_before:,} → {fact.tokens_after:,} tokens: {names}"
            return Note(turn, NoteKind.PRUNE, text)
        case SubagentStarted():
            return Note(turn, NoteKind.SUBAGENT, f"{fact.name} started", fact.sub_trajectory_id)
        case SubagentFinished():
            text = f"{fact.name} {fact.status.value.replace('_', ' ')} after {fact.steps:,} calls"
            return Note(turn, NoteKind.SUBAGENT, text, fact.sub_trajectory_id)
        case _:
            return None
