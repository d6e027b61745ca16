"""Assembles the records of a closed trajectory into its ``Trajectory``. Each event is decoded here, and only once.

The pure function is :func:`assemble`. :func:`conclude` also decodes and encodes, and returns the events that turned
out to be unreadable. An unreadable event adds a label to the trajectory; the other events are used.
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
from headrace.streams.assembly.history import Event, History, Unreadable, UnusableRecord
from headrace.streams.assembly.segments import SegmentFold
from headrace.streams.assembly.trajectory_record import trajectory_record
from headrace.streams.assembly.trajectory_writer import MAX_RECORD_BYTES, plainly_written
from headrace.streams.assembly.turns import TurnFold
from headrace.streams.dead_letters.build import dead_letter_message, time_of
from headrace.streams.raw import Outgoing
from headrace.streams.structs import encode_struct, writing

logger = logging.getLogger(__name__)

_ORDER = {defect: number for number, defect in enumerate(Defect)}
_LATE = UnreadableRecord(DeadLetterError.LATE, "an event with a sequence number after its trajectory's end")
_Trajectory, _SequenceRange = writing(Trajectory), writing(SequenceRange)

MISSING_LISTED = 256
"""Number of missing events that are listed individually, for readers that do not know ``missing_ranges``."""


def assemble(events: Iterable[Event | Unreadable], history: History) -> Trajectory:
    """Returns the trajectory of ``events``, which ascend by sequence number.

    Defects are listed in the order of :class:`Defect`: a rejection gives the first one as its reason.
    """
    return Trajectory.model_validate(_assembled(events, history), from_attributes=True)


def outputs_of(outcome: History | UnusableRecord) -> list[Outgoing]:
    """Returns the output records of the fold's ``outcome``: a trajectory followed by its dead letters, or one dead
    letter. Never raises because of an event's content.
    """
    if isinstance(outcome, UnusableRecord):
        return [dead_letter_output(outcome)]
    trajectory, unusable = conclude(outcome)
    return [trajectory, *map(dead_letter_output, unusable)]


def conclude(history: History) -> tuple[Outgoing, list[UnusableRecord]]:
    """Returns the record of a closed trajectory, and its events that cannot be read or follow its end."""
    try:
        message = plainly_written(history)
        if message is None:
            return _conclude(history)
    except MemoryError:
        raise
    except Exception as error:
        logger.exception("trajectory %s could not be assembled: its events become dead letters", history.trajectory_id)
        return _without_events(history, error)
    return Outgoing(TRAJECTORIES, message, history.closed_ms), []


def _without_events(history: History, error: Exception) -> tuple[Outgoing, list[UnusableRecord]]:
    """Returns the record of a trajectory that could not be assembled, without its events, and all of its events."""
    why = UnreadableRecord(DeadLetterError.RAISED, f"/streams/assemble raised {type(error).__name__}: {error}")
    dead = [UnusableRecord(arrival, why, history.trajectory_id) for arrival in history.records.values()]
    dead += [UnusableRecord(arrival, _LATE, history.trajectory_id) for arrival in history.late]
    nothing = msgspec.structs.replace(history, records={})
    trajectory = _assembled([Unreadable(sequence) for sequence in history.records], nothing)
    return Outgoing(TRAJECTORIES, _message(trajectory, nothing, True), history.closed_ms), dead


def _conclude(history: History) -> tuple[Outgoing, list[UnusableRecord]]:
    """As :func:`conclude`, in Python."""
    events: list[Event | Unreadable] = []
    dead: list[UnusableRecord] = []
    plain = True
    for sequence, arrival in history.records.items():
        try:
            event = read_event(arrival)
        except UnreadableRecord as error:
            dead.append(UnusableRecord(arrival, error, history.trajectory_id))
            events.append(Unreadable(sequence))
        else:
            events.append(event)
            plain = plain and event.plain
    dead += [UnusableRecord(arrival, _LATE, history.trajectory_id) for arrival in history.late]
    trajectory = _assembled(events, history)
    message = _message(trajectory, history, plain)
    if len(message.value) > MAX_RECORD_BYTES:
        message = _message(_without_bulk(trajectory), history, plain)
    return Outgoing(TRAJECTORIES, message, history.closed_ms), dead


def dead_letter_output(unusable: UnusableRecord) -> Outgoing:
    """Returns the dead letter of a record."""
    message = dead_letter_message(unusable.record, unusable.error, unusable.trajectory_id)
    return Outgoing(DEAD_LETTERS, message, time_of(unusable.record))


def trajectory_message(trajectory: Trajectory, time_ms: int) -> Message:
    """Returns ``trajectory`` as a Kafka record."""
    value = encode_struct(trajectory)
    return trajectory_record(trajectory.trajectory_id, trajectory.first, trajectory.traceparent, value, time_ms)


def _assembled(events: Iterable[Event | Unreadable], history: History) -> Trajectory:
    """As :func:`assemble`, but returns structs with the models' fields, so that nothing is validated twice."""
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
        turns=turns.turns(segments.segments_of_calls()),
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
        continuations=ended.continuations if ended else None,
    )


def _message(assembled: Trajectory, history: History, plain: bool) -> Message:
    """Returns the record of ``assembled``. Unless ``plain``, the pydantic model validates and writes it."""
    trajectory = assembled if plain else Trajectory.model_validate(assembled, from_attributes=True)
    return trajectory_message(trajectory, history.closed_ms)


def _traceparent(history: History) -> str | None:
    """Returns the trace context of the first event that has one."""
    for record in history.records.values():
        header = dict(record.headers).get(TRACEPARENT)
        if header is not None and (context := parse_traceparent(header.decode(errors="replace"))):
            return context.traceparent
    return None


def _without_bulk(assembled: Trajectory) -> Trajectory:
    """Returns ``assembled`` without tokens and turns, labelled as oversize: it is too large for the topic."""
    defects = sorted({*assembled.defects, Defect.OVERSIZE}, key=_ORDER.__getitem__)
    struct: Any = assembled
    less: Trajectory = msgspec.structs.replace(struct, segments=[], turns=[], tools={}, defects=defects)
    return less
