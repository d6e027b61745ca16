"""A closed trajectory's records → its ``Trajectory``: the only place where events are decoded, once each.

The pure function is :func:`assemble`. Around it :func:`conclude` decodes and encodes, and says which events
turned out to be unreadable. An unreadable event labels; the rest goes on.
"""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.schemas.envelope import TRACEPARENT
from headrace.schemas.events import ModelCalled, Role, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.trajectory import Defect, SequenceRange, Trajectory
from headrace.schemas.topics import DEAD_LETTERS, TRAJECTORIES
from headrace.schemas.trace import parse_traceparent
from headrace.schemas.wire import Message, UnreadableRecord
from headrace.streams.assembly.event_decoder import read_event
from headrace.streams.assembly.gaps import count, first_numbers, ranges
from headrace.streams.assembly.history import Dead, Event, History, Unreadable
from headrace.streams.assembly.segments import SegmentFold
from headrace.streams.assembly.trajectory_record import trajectory_record
from headrace.streams.assembly.trajectory_writer import MAX_RECORD_BYTES, plainly_written
from headrace.streams.assembly.turns import TurnFold
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.raw import Outgoing
from headrace.streams.structs import encode_struct, writing

logger = logging.getLogger(__name__)

_ORDER = {defect: number for number, defect in enumerate(Defect)}
_LATE = UnreadableRecord(DeadLetterError.LATE, "an event with a sequence number beyond its trajectory's end")
_Trajectory, _SequenceRange = writing(Trajectory), writing(SequenceRange)

MISSING_LISTED = 256
"""So many missing events are listed one by one, for readers that do not know the ranges."""


def assemble(events: Iterable[Event | Unreadable], history: History) -> Trajectory:
    """The trajectory that ``events``, ascending by sequence number, add up to.

    Defects are listed in the order of :class:`Defect`: the first is the reason a rejection will name.
    """
    return Trajectory.model_validate(_assembled(events, history), from_attributes=True)


def settle(outcome: History | Dead) -> list[Outgoing]:
    """What the fold's ``outcome`` becomes: a trajectory and then its dead letters, or one dead letter.

    Never raises for what is in an event.
    """
    if isinstance(outcome, Dead):
        return [letter(outcome)]
    trajectory, dead = conclude(outcome)
    return [trajectory, *map(letter, dead)]


def conclude(history: History) -> tuple[Outgoing, list[Dead]]:
    """The record of a closed trajectory, and its events that cannot be read or stand beyond its end."""
    try:
        message = plainly_written(history)
        if message is None:
            return _conclude(history)
    except MemoryError:
        raise
    except Exception as error:
        logger.exception("trajectory %s could not be assembled: its events are set aside", history.trajectory_id)
        return _set_aside(history, error)
    return Outgoing(TRAJECTORIES, message, history.closed_ms), []


def _set_aside(history: History, error: Exception) -> tuple[Outgoing, list[Dead]]:
    """The record of a trajectory that could not be assembled: without its events, which are dead letters."""
    why = UnreadableRecord(DeadLetterError.RAISED, f"/streams/assemble raised {type(error).__name__}: {error}")
    dead = [Dead(arrival, why, history.trajectory_id) for arrival in history.records.values()]
    dead += [Dead(arrival, _LATE, history.trajectory_id) for arrival in history.late]
    nothing = msgspec.structs.replace(history, records={})
    trajectory = _assembled([Unreadable(sequence) for sequence in history.records], nothing)
    return Outgoing(TRAJECTORIES, _message(trajectory, nothing, True), history.closed_ms), dead


def _conclude(history: History) -> tuple[Outgoing, list[Dead]]:
    """As :func:`conclude`, whatever the events hold."""
    events: list[Event | Unreadable] = []
    dead: list[Dead] = []
    plain = True
    for sequence, arrival in history.records.items():
        try:
            event = read_event(arrival)
        except UnreadableRecord as error:
            dead.append(Dead(arrival, error, history.trajectory_id))
            events.append(Unreadable(sequence))
        else:
            events.append(event)
            plain = plain and event.plain
    dead += [Dead(arrival, _LATE, history.trajectory_id) for arrival in history.late]
    trajectory = _assembled(events, history)
    message = _message(trajectory, history, plain)
    if len(message.value) > MAX_RECORD_BYTES:
        message = _message(_without_bulk(trajectory), history, plain)
    return Outgoing(TRAJECTORIES, message, history.closed_ms), dead


def letter(dead: Dead) -> Outgoing:
    """The dead letter of a record."""
    message = dead_letter_message(dead.record, dead.error, dead.trajectory_id)
    return Outgoing(DEAD_LETTERS, message, time_of(dead.record))


def trajectory_message(trajectory: Trajectory, time_ms: int) -> Message:
    """``trajectory`` as a Kafka record."""
    value = encode_struct(trajectory)
    return trajectory_record(trajectory.trajectory_id, trajectory.first, trajectory.traceparent, value, time_ms)


def _assembled(events: Iterable[Event | Unreadable], history: History) -> Trajectory:
    """As :func:`assemble`, but a struct with a trajectory's fields, made of structs, and nothing validated twice."""
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
        fact = event.fact
        if fact.TYPE == ModelCalled.TYPE:
            segments.add(fact)
        elif fact.TYPE == TrajectoryStarted.TYPE:
            started = started or fact
        elif fact.TYPE == TrajectoryEnded.TYPE:
            ended = fact
        turns.add(fact)
    if started is None:
        defects.add(Defect.NO_START)
    elif not started.consent:
        defects.add(Defect.NO_CONSENT)
    if started is not None and started.role is Role.FROZEN:
        defects.add(Defect.FROZEN_ROLE)
    if started is not None and not segments.runs <= {started.run}:
        defects.add(Defect.OTHER_RUN)
    if not segments.sampled_tokens and Defect.NO_TOKEN_IDS not in segments.defects:
        defects.add(Defect.NOTHING_SAMPLED)
    return _Trajectory(
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
        missing=first_numbers(history.missing, MISSING_LISTED),
        missing_ranges=[_SequenceRange(start=start, end=end) for start, end in ranges(history.missing)],
        missing_count=count(history.missing),
        events=len(times),
        unreadable=sorted(unreadable),
        duplicates=history.duplicates,
        defects=sorted(defects | segments.defects, key=_ORDER.__getitem__),
        first=history.first,
        last=history.last,
        closed_offset=history.closed_offset,
        start_id=history.start_id and history.start_id.decode(),
        started_ms=max(0, min(times, default=history.first_ms)),
        ended_ms=max(0, max(times, default=history.last_ms)),
        traceparent=_traceparent(history),
    )


def _message(assembled: Trajectory, history: History, plain: bool) -> Message:
    """The record of what :func:`_assembled` gave; not ``plain``: written by the model."""
    trajectory = assembled if plain else Trajectory.model_validate(assembled, from_attributes=True)
    return trajectory_message(trajectory, history.closed_ms)


def _traceparent(history: History) -> str | None:
    """The trace context of the first event that has one."""
    for record in history.records.values():
        header = dict(record.headers).get(TRACEPARENT)
        if header is not None and (context := parse_traceparent(header.decode(errors="replace"))):
            return context.traceparent
    return None


def _without_bulk(assembled: Trajectory) -> Trajectory:
    """What :func:`_assembled` gave, without tokens and turns, labelled: too large for the topic, and still counted."""
    defects = sorted({*assembled.defects, Defect.OVERSIZE}, key=_ORDER.__getitem__)
    struct: Any = assembled
    less: Trajectory = msgspec.structs.replace(struct, segments=[], turns=[], tools={}, defects=defects)
    return less
