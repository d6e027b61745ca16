"""A processor that scores with one Python function instead of score, to try out a reward."""

from collections.abc import Callable
from typing import Any

from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import REWARDS, TRAJECTORIES
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside
from headrace.streams.scoring.score import reward_message
from headrace.streams.typed_record import typed


class FunctionOperator(Operator):
    """Computes a reward for each trajectory; ignores feedback."""

    def __init__(self, function: Callable[[Trajectory, Reference], Any]) -> None:
        """``function`` returns a ``Reward`` for a trajectory and its position."""
        self._function = function
        self._outgoing: list[Outgoing] = []

    def process(self, record: LogRecord) -> None:
        """Score a trajectory. Raises ``TypeError`` if the function returns something other than a ``Reward``."""
        if record.topic != TRAJECTORIES.name:
            return
        _, trajectory = typed(record, Trajectory)
        reward = self._function(trajectory, Reference(partition=record.partition, offset=record.offset))
        if not isinstance(reward, Reward):
            raise TypeError(f"{self._function} must return a Reward, not {type(reward).__name__}")
        self._outgoing.append(Outgoing(REWARDS, reward_message(reward), record.timestamp))

    def flush(self) -> Effects:
        """Returns the rewards."""
        outgoing, self._outgoing = self._outgoing, []
        return Effects(outgoing)


def restore_function(
    function: Callable[[Trajectory, Reference], Any], rules: Rules, start: Start
) -> tuple[FunctionOperator, list[SetAside]]:
    """Returns the operator of ``function``, which is stateless."""
    return FunctionOperator(function), []
