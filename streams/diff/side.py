"""One side of a comparison: what became of every trajectory, live or in a replay. A fold over derived records.

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
    """What became of a trajectory. Some 300 bytes."""

    run: str = ""
    """Training run."""
    agent: str = ""
    """Agent."""
    task: str = ""
    """Task."""
    version: int | None = None
    """Oldest policy version among its tokens."""
    group: str | None = None
    """Group, given or made of a cohort."""
    spec: str = ""
    """Reward spec."""
    total: float | None = None
    """Its reward."""
    unscored: str | None = None
    """Why it has none."""
    revision: int = -1
    """Which of its rewards this is; −1 with none."""
    fate: str = PENDING
    """``trained``, the reason of its rejection, or ``open``."""
    advantage: float | None = None
    """What its tokens would be trained with; ``None`` where they would not be."""


@dataclass(slots=True)
class DiffSide:
    """Everything that is known on one side, by trajectory id."""

    name: str
    """``live``, or the replay's."""
    wanted: frozenset[str] | None = None
    """Which trajectories count; ``None``: all."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """What became of them."""

    def add(self, record: Record) -> None:
        """Take notice of a reward, a training group or a rejection by ``group``; order does not matter.

        What the trainer turns away afterwards, for its age, is no concern of rewards.
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
        """Its members are trained."""
        for member in group.members:
            if attempt := self._attempt(member.trajectory_id):
                attempt.fate, attempt.advantage = TRAINED, member.advantage
                attempt.group = intern(group.group_id)

    def add_rejection(self, rejection: Rejection) -> None:
        """Its trajectory is not trained, where grouping said so."""
        attempt = self._attempt(rejection.trajectory_id) if rejection.stage is Stage.GROUP else None
        if attempt is not None:
            attempt.fate = intern(rejection.reason.value)
            attempt.group = intern(rejection.group_id) if rejection.group_id else attempt.group

    def add_reward(self, reward: Reward) -> None:
        """Its trajectory's reward, unless a later revision is known."""
        attempt = self._attempt(reward.trajectory_id)
        if attempt is None or reward.revision <= attempt.revision:
            return
        attempt.revision, attempt.spec = reward.revision, intern(reward.spec)
        attempt.total, attempt.unscored = reward.total, reward.unscored
        attempt.run, attempt.agent = intern(reward.run), intern(reward.agent)
        attempt.task, attempt.version = intern(reward.task_id or ""), reward.oldest_version
        attempt.group = attempt.group or (intern(reward.group_id) if reward.group_id else None)


def group_states(side: DiffSide) -> dict[str, str]:
    """Group → ``trained`` where it carries a gradient; else ``open``, or the commonest reason among its members."""
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
