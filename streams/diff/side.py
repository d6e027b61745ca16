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
        if isinstance(record, Reward):
            self._add_reward(record)
        elif isinstance(record, TrainingGroup):
            for member in record.members:
                if attempt := self._attempt(member.trajectory_id):
                    attempt.fate, attempt.advantage = TRAINED, member.advantage
                    attempt.group = intern(record.group_id)
        elif isinstance(record, Rejection):
            attempt = self._attempt(record.trajectory_id) if record.stage is Stage.GROUP else None
            if attempt is not None:
                attempt.fate = intern(record.reason.value)
                attempt.group = intern(record.group_id) if record.group_id else attempt.group

    def _attempt(self, trajectory_id: str) -> Attempt | None:
        if self.wanted is not None and trajectory_id not in self.wanted:
            return None
        return self.attempts.setdefault(trajectory_id, Attempt())

    def _add_reward(self, reward: Reward) -> None:
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
