"""Converts score's input records: into an immediate reward, or into an arrival or feedback for the join. Pure.

The runtime has already checked the record's timestamp.
"""

from typing import NamedTuple, TypeAlias, cast

from headrace.schemas.events import FeedbackGiven
from headrace.schemas.ids import derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import REWARDS
from headrace.streams.dead_letters.raised import position_of, raised_alert
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rewards.registry import OF_OUTCOME, Rewards, is_ours
from headrace.streams.rewards.spec import Feedback, RewardSpec
from headrace.streams.scoring.feedback_join import TRAJECTORY_GONE, TrajectoryArrival
from headrace.streams.scoring.score import SOURCE, PlainReference, PlainReward, reward_message, score_or_label, unscored
from headrace.streams.scoring.trajectory_summary import read_summary
from headrace.streams.typed_reader import TypedPayload, TypedReader
from headrace.streams.typed_record import typed

_TRAJECTORIES = TypedReader(Trajectory)
_AGENT = b'"agent":"'

MAX_FEEDBACK_ID = 128
"""Longest feedback id that is kept unchanged, in bytes; a longer one is hashed."""

Waiting: TypeAlias = tuple[TrajectoryArrival, Trajectory]
"""A trajectory that goes through the join."""


class Scored(NamedTuple):
    """A reward computed immediately."""

    reward: Reward
    """The reward."""
    outgoing: list[Outgoing]
    """Its record and, if scoring raised, an alert."""


def take_trajectory(record: LogRecord, rewards: Rewards) -> Scored | Waiting:
    """Returns the reward of a record of ``trajectories`` or, if it needs feedback or judges, the input of the join.

    If scoring raised, the reward is labelled and comes with an alert. Raises :class:`UnreadableRecord`.
    """
    trajectory, traceparent = read_trajectory(record, rewards)
    spec, place = rewards.of(trajectory), {"partition": record.partition, "offset": record.offset}
    if not needs_join(spec):
        is_model = isinstance(trajectory, Trajectory)
        reference = Reference(**place) if is_model else PlainReference(**place)
        make = Reward if is_model else PlainReward
        reward, error = score_or_label(trajectory, reference, rewards=rewards, make=make)
        outgoing = [Outgoing(REWARDS, reward_message(reward, origin=traceparent), record.timestamp)]
        if error is not None:
            outgoing.append(raised_alert(error, SOURCE, record.timestamp, **position_of(record)))
        return Scored(reward, outgoing)
    # Without a window it is due immediately, while the trajectory is still in memory.
    waits = spec.feedback_window_ms > 0
    arrival = TrajectoryArrival(
        trajectory_id=trajectory.trajectory_id,
        offset=record.offset,
        arrived_ms=record.timestamp,
        window_ms=spec.feedback_window_ms,
        takes_feedback=spec.takes_feedback,
        origin=traceparent,
        blank=unscored(trajectory, Reference(**place), TRAJECTORY_GONE, rewards=rewards) if waits else None,
    )
    return arrival, trajectory


def read_trajectory(record: LogRecord, rewards: Rewards) -> TypedPayload[Trajectory]:
    """The trajectory in ``record``; raises :class:`UnreadableRecord`.

    Specs that come with headrace only read its fields, so they are given a struct with these fields, at a quarter of
    what the model costs, or a summary without turns and tokens if they read the outcome only, at an eighth of that; a
    user's function is given the model.
    """
    value = record.value
    if value is not None and _seems_of_outcome(value, rewards) and (plain := _TRAJECTORIES.plain(record)) is not None:
        summary = cast(Trajectory | None, read_summary(value))
        if summary is not None and _is_of_outcome(rewards.of(summary)):
            return TypedPayload(summary, plain.traceparent)
    read = _TRAJECTORIES.read(record)
    if isinstance(read.payload, Trajectory) or is_ours(rewards.of(read.payload)):
        return read
    envelope, trajectory = typed(record, Trajectory)
    return TypedPayload(trajectory, envelope.traceparent)


def _seems_of_outcome(value: bytes, rewards: Rewards) -> bool:
    """Whether the reward of the trajectory in ``value`` is probably one of its outcome, by the first agent in it: a
    summary that turns out not to suffice is read for nothing."""
    begin = value.find(_AGENT) + len(_AGENT)
    agent = value[begin : value.find(b'"', begin)].decode(errors="replace")
    return _is_of_outcome(rewards.by_agent.get(agent, rewards.default))


def _is_of_outcome(spec: RewardSpec) -> bool:
    return spec.label in OF_OUTCOME and is_ours(spec)


def take_feedback(record: LogRecord) -> tuple[str, Feedback]:
    """Returns the trajectory id and the feedback of a record of ``feedback``. Raises :class:`UnreadableRecord`."""
    envelope, given = typed(record, FeedbackGiven)
    place = Reference(partition=record.partition, offset=record.offset)
    # The join keeps the id, so a long one is replaced by a hash.
    id = envelope.id if len(envelope.id.encode()) <= MAX_FEEDBACK_ID else derived_id("feedback", envelope.id)
    return envelope.subject, Feedback(id, given.signal, given.value, record.timestamp, place)


def needs_join(spec: RewardSpec) -> bool:
    """Whether ``spec`` waits for feedback, makes revisions, or has judges, whose verdicts must be kept."""
    return bool(spec.feedback_window_ms or spec.takes_feedback or spec.judges)


def uses_feedback(rewards: Rewards) -> bool:
    """Whether any of ``rewards`` uses the topic ``feedback``."""
    return any(spec.feedback_window_ms or spec.takes_feedback for spec in rewards.specs)
