"""Observe as an operator: records of four topics in, one observation each out. It keeps no state."""

from headrace.schemas.events import FeedbackGiven
from headrace.schemas.ids import derived_id
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.watch import Observation
from headrace.schemas.topics import FEEDBACK, OBSERVATIONS, REJECTED, REWARDS, TRAJECTORIES
from headrace.schemas.wire import Message, UnreadableRecord, record_message
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside
from headrace.streams.typed_reader import TypedReader
from headrace.streams.typed_record import typed
from headrace.streams.watch.observe import observe_attempt, observe_feedback, observe_rejection, observe_reward

SOURCE = "/streams/observe"
"""``ce_source`` of observations."""

UNREADABLE = "unreadable"
"""Counted: records that cannot be read. Observations are counted by their kind."""

_TRAJECTORIES, _REWARDS, _REJECTIONS = TypedReader(Trajectory), TypedReader(Reward), TypedReader(Rejection)


class ObserveOperator(Operator):
    """The same partition of trajectories, rewards, rejections and feedback."""

    def __init__(self) -> None:
        self._effects = Effects()

    def process(self, record: LogRecord) -> None:
        """Make the observation of ``record``. One that cannot be read is only counted: the processor that decides about
        it makes the dead letter, and a record has one.
        """
        try:
            observation = observed(record)
        except UnreadableRecord:
            self._effects.counts[UNREADABLE] += 1
            return
        self._effects.outgoing.append(Outgoing(OBSERVATIONS, _message(observation, record), record.timestamp))
        self._effects.counts[str(observation.of)] += 1

    def flush(self) -> Effects:
        """Returns the observations."""
        effects, self._effects = self._effects, Effects()
        return effects


def observed(record: LogRecord) -> Observation:
    """Returns the observation of ``record``. Raises :class:`UnreadableRecord`."""
    match record.topic:
        case TRAJECTORIES.name:
            return observe_attempt(_TRAJECTORIES.read(record).payload)
        case REWARDS.name:
            return observe_reward(_REWARDS.read(record).payload)
        case REJECTED.name:
            return observe_rejection(_REJECTIONS.read(record).payload)
        case FEEDBACK.name:
            envelope, feedback = typed(record, FeedbackGiven)
            return observe_feedback(feedback, envelope.subject, envelope.id)
        case _:
            raise ValueError(f"observe does not read {record.topic}")


def restore_observe(rules: Rules, start: Start) -> tuple[ObserveOperator, list[SetAside]]:
    """Returns the operator of a partition, which has no state."""
    return ObserveOperator(), []


def _message(observation: Observation, record: LogRecord) -> Message:
    return record_message(
        observation,
        id=derived_id(Observation.TYPE, record.topic, record.partition, record.offset),
        key=observation.trajectory_id,
        source=SOURCE,
        time_ms=record.timestamp,
        subject=observation.trajectory_id,
    )
