"""Trajectories of a range scored again: by the specs of the replay, with the function that live scoring calls."""

from collections import Counter
from typing import cast

from headrace.schemas.records import DeadLetterError, Reference, Reward, Trajectory
from headrace.schemas.topics import DEAD_LETTERS, REWARDS
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.dead_letters import dead_letter_message
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rewards.registry import Rewards
from headrace.streams.score import reward_message, score


class Rescoring:
    """Scores trajectories, and counts them."""

    def __init__(self, rewards: Rewards) -> None:
        """``rewards``: which agent is scored by which spec."""
        self.counts: Counter[str] = Counter()
        """How many were scored, and how many not, by label."""
        self._rewards = rewards

    def take(self, record: LogRecord) -> tuple[Reward | None, Outgoing]:
        """The reward of the trajectory in ``record``, and its record; or ``None`` and a dead letter."""
        try:
            envelope, payload = decode(record.headers, record.value)
            if not isinstance(payload, Trajectory):
                raise UnreadableRecord(DeadLetterError.INVALID, f"{envelope.type} does not belong in {record.topic}")
        except UnreadableRecord as error:
            self.counts["unreadable"] += 1
            return None, Outgoing(DEAD_LETTERS, dead_letter_message(record, error), record.timestamp)
        place = Reference(partition=record.partition, offset=record.offset)
        reward = score(payload, place, rewards=self._rewards)
        self.counts[REWARDS.name] += 1
        if reward.total is None:
            self.counts[f"unscored_{cast(str, reward.unscored)}"] += 1
        message = reward_message(reward, origin=envelope.traceparent)
        return reward, Outgoing(REWARDS, message, record.timestamp)
