"""A closed trajectory's records → its ``Trajectory``: the only place where events are decoded, once each.

The pure function is :func:`assemble`. Around it :func:`settle` decodes, and gives what goes to Kafka: the trajectory,
and a dead letter for each event that turned out to be unreadable. An unreadable event labels; the rest goes on.
"""

import re
from collections.abc import Iterable, Iterator
from typing import cast

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ClockTicked, ModelCalled, Role, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.ids import derived_id
from headrace.schemas.records import DeadLetterError, Defect, Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.schemas.wire import Message, UnreadableRecord, decode, record_message
from headrace.streams.dead_letters import dead_letter_message
from headrace.streams.history import Dead, Event, Fact, History, Unreadable
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.segments import SegmentFold
from headrace.streams.turns import TurnFold

SOURCE = "/streams/assemble"

MAX_RECORD_BYTES = 24 * 1024 * 1024
"""Largest trajectory record; ``trajectories`` takes 32 MiB. A larger one goes without tokens and turns, and says so."""

MAX_NESTING = 150
"""Depth of JSON in an event. Parsers stop at 200, and a trajectory nests its events deeper than they came."""

_MODELS = {model.TYPE: model for model in EVENTS.models}
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ORDER = {defect: number for number, defect in enumerate(Defect)}


def assemble(events: Iterable[Event | Unreadable], history: History) -> Trajectory:
    """The trajectory that ``events``, ascending by sequence number, add up to.

    Defects are listed in the order of :class:`Defect`: the first is the reason a rejection will name.
    """
    segments, turns = SegmentFold(), TurnFold()
    started: TrajectoryStarted | None = None
    ended: TrajectoryEnded | None = None
    defects = set(history.labels)
    unreadable = set(history.unreadable)
    times: list[int] = []
    for event in events:
        if isinstance(event, Unreadable):
            unreadable.add(event.sequence)
            defects.add(Defect.BAD_EVENT)
            continue
        times.append(event.time_ms)
        match event.fact:
            case TrajectoryStarted():
                started = started or event.fact
            case TrajectoryEnded():
                ended = event.fact
            case ClockTicked():
                pass
            case ModelCalled():
                segments.add(event.fact)
                turns.add(event.fact)
            case _:
                turns.add(event.fact)
    if started is None:
        defects.add(Defect.NO_START)
    elif not started.consent:
        defects.add(Defect.NO_CONSENT)
    if started is not None and started.role is Role.FROZEN:
        defects.add(Defect.FROZEN_ROLE)
    if not segments.sampled_tokens and Defect.NO_TOKEN_IDS not in segments.defects:
        defects.add(Defect.NOTHING_SAMPLED)
    return Trajectory(
        trajectory_id=history.trajectory_id,
        started=started,
        segments=segments.segments(),
        turns=turns.turns(),
        tools=turns.statistics(),
        critical_steps=turns.critical_steps,
        total_steps=turns.total_steps,
        subagents_assigned=turns.subagents_assigned,
        subagents_finished=turns.subagents_finished,
        sampled_tokens=segments.sampled_tokens,
        status=ended.status if ended else None,
        answer=ended.answer if ended else None,
        outcome=ended.outcome if ended else None,
        missing=list(history.missing),
        events=len(times),
        unreadable=sorted(unreadable),
        duplicates=history.duplicates,
        defects=sorted(defects | segments.defects, key=_ORDER.__getitem__),
        first=history.first,
        last=history.last,
        started_ms=max(0, min(times, default=history.first_ms)),
        ended_ms=max(0, max(times, default=history.last_ms)),
    )


def settle(outcome: History | Dead) -> list[Outgoing]:
    """What the fold's ``outcome`` becomes: a trajectory and then its dead letters, or one dead letter.

    Never raises for what is in an event.
    """
    if isinstance(outcome, Dead):
        return [_letter(outcome)]
    letters: list[Outgoing] = []

    def decoded() -> Iterator[Event | Unreadable]:
        for sequence, record in outcome.records:
            try:
                yield _event(record)
            except UnreadableRecord as error:
                letters.append(_letter(Dead(record, error, outcome.trajectory_id)))
                yield Unreadable(sequence)

    trajectory = assemble(decoded(), outcome)
    late = UnreadableRecord(DeadLetterError.LATE, "an event with a sequence number beyond its trajectory's end")
    letters += [_letter(Dead(record, late, outcome.trajectory_id)) for record in outcome.late]
    message = trajectory_message(trajectory, outcome.closed_ms)
    if len(message.value) > MAX_RECORD_BYTES:
        message = trajectory_message(_without_bulk(trajectory), outcome.closed_ms)
    return [Outgoing(TRAJECTORIES, message, outcome.closed_ms), *letters]


def trajectory_message(trajectory: Trajectory, time_ms: int) -> Message:
    """``trajectory`` as a Kafka record; its id follows from where its first event stands."""
    first = trajectory.first
    return record_message(
        trajectory,
        id=derived_id(Trajectory.TYPE, trajectory.trajectory_id, first.partition, first.offset),
        key=trajectory.trajectory_id,
        source=SOURCE,
        time_ms=max(0, time_ms),
        subject=trajectory.trajectory_id,
    )


def _letter(dead: Dead) -> Outgoing:
    message = dead_letter_message(dead.record, dead.error, dead.trajectory_id)
    return Outgoing(DEAD_LETTERS, message, dead.record.timestamp)


def _event(record: LogRecord) -> Event:
    """Decode one event; raises :class:`UnreadableRecord`. Pydantic today: whatever replaces it goes here."""
    envelope: Envelope
    envelope, fact = decode(record.headers, record.value, _MODELS)
    if record.value is not None and _nesting(record.value) > MAX_NESTING:
        raise UnreadableRecord(DeadLetterError.INVALID, f"{envelope.type}: nested deeper than {MAX_NESTING}")
    return Event(envelope.time_ms, cast(Fact, fact))


def _nesting(value: bytes) -> int:
    """Upper bound of the depth of JSON; exact where there are enough brackets to matter."""
    brackets = value.count(b"[") + value.count(b"{")
    if brackets <= MAX_NESTING:
        return brackets
    depth = deepest = 0
    for token in _BRACKETS.finditer(value):
        if token.group() in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token.group() in b"]}":
            depth -= 1
    return deepest


def _without_bulk(trajectory: Trajectory) -> Trajectory:
    """``trajectory`` without tokens and turns, labelled: too large for the topic, and still counted."""
    defects = sorted({*trajectory.defects, Defect.OVERSIZE}, key=_ORDER.__getitem__)
    return trajectory.model_copy(update={"segments": [], "turns": [], "tools": {}, "defects": defects})
