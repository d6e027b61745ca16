"""Score as an operator: trajectories and their feedback in, rewards out.

A trajectory whose spec needs neither feedback nor judges is scored immediately and leaves no state. The others go
through a :class:`Join`; the processor's hook (``score_hook.py``) decides its due rewards.
"""

from collections import Counter

from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import FEEDBACK, REWARDS
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside, read_state
from headrace.streams.scoring.attempt import AttemptState
from headrace.streams.scoring.due_rewards import announcements
from headrace.streams.scoring.feedback_join import Join, JoinChanges
from headrace.streams.scoring.score_intake import Scored, take_feedback, take_trajectory

REVISIONS = "revisions"
"""Counted: rewards that replace earlier ones. Others are counted as ``rewards``; those without a total are also counted
as ``unscored_`` plus the reason."""


class ScoreOperator(Operator):
    """One partition of ``trajectories`` and the same partition of ``feedback``."""

    def __init__(self, rewards: Rewards, join: Join) -> None:
        """``join``: the restored state."""
        self.join = join
        self.newest_ms = join.newest_ms
        self.changes = JoinChanges()
        """Effects of the batch; the hook decides the due rewards before they are flushed."""
        self.joining: dict[int, Trajectory] = {}
        """Trajectories of the current batch that go through the join, by offset; they need not be read back."""
        self._rewards = rewards
        self._outgoing: list[Outgoing] = []
        self._counts: Counter[str] = Counter()

    def process(self, record: LogRecord) -> None:
        """Score a trajectory, or pass it or its feedback to the join."""
        if record.topic == FEEDBACK.name:
            name, feedback = take_feedback(record)
            with self.join.undone_if_it_raises(name, self.changes):
                self.join.add_feedback(name, feedback, self.changes)
            return
        taken = take_trajectory(record, self._rewards)
        if isinstance(taken, Scored):
            self._outgoing += taken.outgoing
            self._count(taken.reward)
            return
        arrival, trajectory = taken
        with self.join.undone_if_it_raises(arrival.trajectory_id, self.changes):
            self.join.add_trajectory(arrival, self.changes)
        self.joining[record.offset] = trajectory

    @property
    def waits(self) -> bool:
        """Whether the join has state."""
        return len(self.join) > 0

    def is_due(self, now_ms: int) -> bool:
        """Whether a window has ended, or state has expired, at ``now_ms``."""
        return self.join.is_due(now_ms)

    def advance(self, now_ms: int, at_most: int) -> None:
        """Close windows that have ended, at most ``at_most``, and drop expired state."""
        self.join.pass_time(now_ms, self.changes, at_most=at_most)

    @property
    def limits_reached(self) -> Counter[str]:
        """Counts of reached limits of the feedback join."""
        return self.join.counts

    def flush(self) -> Effects:
        """Returns rewards, alerts and state. All due rewards must have been decided."""
        changes, self.changes = self.changes, JoinChanges()
        outgoing, self._outgoing = self._outgoing, []
        self.joining = {}
        state = {
            name.encode(): kept.model_dump_json(exclude_defaults=True).encode() if kept else None
            for name, kept in changes.stored.items()
        }
        for decided in changes.decided:
            self._count(decided.reward)
        counts, self._counts = self._counts, Counter()
        return Effects([*outgoing, *announcements(changes)], state, counts)

    def _count(self, reward: Reward) -> None:
        self._counts[REVISIONS if reward.revision else REWARDS.name] += 1
        if reward.unscored is not None and not reward.revision:
            self._counts[f"unscored_{reward.unscored}"] += 1


def restore_score(rules: Rules, start: Start) -> tuple[ScoreOperator, list[SetAside]]:
    """Returns the operator of a partition of ``trajectories``, and the state entries that cannot be read."""
    stored, aside = read_state(start.stored, stored_attempt)
    return ScoreOperator(rules.rewards, Join(rules.join, dict(stored.values()))), aside


def stored_attempt(key: bytes, value: bytes) -> tuple[str, AttemptState]:
    """Returns trajectory id and state of a record of the state topic. Raises ``ValueError``."""
    return key.decode(), AttemptState.model_validate_json(value)
