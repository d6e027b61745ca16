"""One side of a comparison: the fate of every trajectory, live or in a replay. A fold over derived records.

t-1  search@1  0.75  trained  +0.25        t-2  search@1  —  rejected: no_targets
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from sys import intern

from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection, Stage, TrainingGroup
from headrace.schemas.records.reward import Reward

TRAINED = "trained"
PENDING = "open"


@dataclass(slots=True)
class Attempt:
    """Reward and fate of a trajectory; about 300 bytes."""

    run: str = ""
    """Training run."""
    agent: str = ""
    """Agent."""
    task: str = ""
    """Task."""
    version: int | None = None
    """Oldest policy version among its tokens."""
    group: str | None = None
    """Group id, given or derived from a cohort."""
    spec: str = ""
    """Reward spec."""
    total: float | None = None
    """Its reward."""
    unscored: str | None = None
    """Reason for no reward."""
    revision: int = -1
    """Revision of its reward; −1 without a reward."""
    fate: str = PENDING
    """``trained``, the reason of its rejection, or ``open``."""
    advantage: float | None = None
    """Advantage of its tokens; ``None`` if it is not trained."""


@dataclass(slots=True)
class DiffSide:
    """Rewards and fates of one side, by trajectory id."""

    name: str
    """``live``, or the replay's name."""
    wanted: frozenset[str] | None = None
    """Trajectories to include; ``None``: all."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Reward and fate by trajectory id."""

    def add(self, record: Record) -> None:
        """Fold a reward, a training group or a rejection by ``group``; the order does not matter.

        Later rejections by the trainer, for staleness, are ignored: they do not depend on rewards.
        """
        match record:
            case Reward():
                self.add_reward(record)
            case TrainingGroup():
                self.add_group(record)
            case Rejection():
                self.add_rejection(record)

    def _attempt(self, trajectory_id: str) -> Attempt | None:
        if self.wanted is not None and trajectory_id not in self.wanted:
            return None
        attempt = self.attempts.get(trajectory_id)
        if attempt is None:
            attempt = self.attempts[trajectory_id] = Attempt()
        return attempt

    def add_group(self, group: TrainingGroup) -> None:
        """Mark the members of ``group`` as trained."""
        for member in group.members:
            if attempt := self._attempt(member.trajectory_id):
                attempt.fate, attempt.advantage = TRAINED, member.advantage
                attempt.group = intern(group.group_id)

    def add_rejection(self, rejection: Rejection) -> None:
        """Mark the trajectory as rejected, if ``group`` rejected it."""
        attempt = self._attempt(rejection.trajectory_id) if rejection.stage is Stage.GROUP else None
        if attempt is not None:
            attempt.fate = intern(rejection.reason.value)
            attempt.group = intern(rejection.group_id) if rejection.group_id else attempt.group

    def add_reward(self, reward: Reward) -> None:
        """Set the reward of the trajectory, unless a later revision is known."""
        attempt = self._attempt(reward.trajectory_id)
        if attempt is None or reward.revision <= attempt.revision:
            return
        attempt.revision, attempt.spec = reward.revision, intern(reward.spec)
        attempt.total, attempt.unscored = reward.total, reward.unscored
        attempt.run, attempt.agent = intern(reward.run), intern(reward.agent)
        attempt.task, attempt.version = intern(reward.task_id or ""), reward.oldest_version
        attempt.group = attempt.group or (intern(reward.group_id) if reward.group_id else None)


def group_states(side: DiffSide) -> dict[str, str]:
    """Returns group → ``trained`` if it carries a gradient, else ``open`` or the most common reason of its members."""
    fates: dict[str, Counter[str]] = defaultdict(Counter)
    for attempt in side.attempts.values():
        if attempt.group is not None:
            fates[attempt.group][attempt.fate] += 1
    return {group: _state(counts) for group, counts in fates.items()}


def _state(counts: Counter[str]) -> str:
    for state in (TRAINED, PENDING):
        if counts[state]:
            return state
    return min(counts, key=lambda reason: (-counts[reason], reason))
