"""A function in the place of score's: how a reward of one's own is tried out."""

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
    """Makes a reward of each trajectory; feedback is passed over."""

    def __init__(self, function: Callable[[Trajectory, Reference], Any]) -> None:
        """``function`` makes a ``Reward`` of a trajectory and the place where it stands."""
        self._function = function
        self._outgoing: list[Outgoing] = []

    def process(self, record: LogRecord) -> None:
        """Raises ``TypeError`` where the function gives something else than a ``Reward``."""
        if record.topic != TRAJECTORIES.name:
            return
        _, trajectory = typed(record, Trajectory)
        reward = self._function(trajectory, Reference(partition=record.partition, offset=record.offset))
        if not isinstance(reward, Reward):
            raise TypeError(f"{self._function} must make a Reward of a Trajectory, not {type(reward).__name__}")
        self._outgoing.append(Outgoing(REWARDS, reward_message(reward), record.timestamp))

    def flush(self) -> Effects:
        """The rewards."""
        outgoing, self._outgoing = self._outgoing, []
        return Effects(outgoing)


def restore_function(
    function: Callable[[Trajectory, Reference], Any], rules: Rules, start: Start
) -> tuple[FunctionOperator, list[SetAside]]:
    """The operator of ``function``, which keeps no state."""
    return FunctionOperator(function), []
