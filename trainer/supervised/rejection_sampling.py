"""Rejection sampling (RFT of Kimi K2.5): successful trajectories of reinforcement learning become supervised data."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.schemas.events import EndStatus
from headrace.trainer.supervised.attempt import ScoredTrajectory
from headrace.trainer.supervised.selection import MALFORMED, Selection, Sieve

SUCCESS = "success"
"""Kind of kept attempts."""

BELOW_REWARD = "below_reward"
NOT_ABOVE_GROUP = "not_above_its_group"
REPEATED = "repeated"
"""Rules by which an attempt is excluded."""


@dataclass(frozen=True, slots=True)
class RejectionSampling:
    """Settings of what counts as a success."""

    min_reward: float = 0.8
    """Smallest reward, as a share of the largest possible one if the spec declares it."""
    above_group: bool = True
    """Keep only attempts above the mean of their group's scored members: a group in which all attempts succeed teaches
    nothing."""
    per_task: int = 1
    """Trajectories per task: the best, and of equal ones the shortest."""

    def __post_init__(self) -> None:
        if self.per_task < 1:
            raise ValueError(f"per_task is {self.per_task}: it must be at least 1")

    def select(self, attempts: Sequence[ScoredTrajectory]) -> Selection:
        """Select the ``attempts`` to imitate, in any order. Each must have a reward, its form and its group's mean."""

        def is_above(attempt: ScoredTrajectory) -> bool:
            return attempt.group_mean is None or (attempt.total or 0.0) > attempt.group_mean

        sieve = Sieve(list(attempts))
        sieve.apply(lambda attempt: None if attempt.status is EndStatus.COMPLETED else MALFORMED)
        sieve.apply(lambda attempt: BELOW_REWARD if _share(attempt) < self.min_reward else None)
        if self.above_group:
            sieve.apply(lambda attempt: None if is_above(attempt) else NOT_ABOVE_GROUP)
        first_of_kind = _first_of_kind(sieve.left)
        sieve.apply(lambda attempt: None if attempt.trajectory_id in first_of_kind else REPEATED)
        sieve.keep_best(self.per_task, _rank)
        return sieve.selection(lambda _: SUCCESS)


def _share(attempt: ScoredTrajectory) -> float:
    """Returns the reward as a share of the largest possible one, if that is above 0; else the reward."""
    if attempt.total is None:
        raise ValueError(f"trajectory {attempt.trajectory_id} has no reward: leave unscored attempts out first")
    return attempt.total / attempt.maximum if attempt.maximum and attempt.maximum > 0 else attempt.total


def _rank(attempt: ScoredTrajectory) -> tuple[object, ...]:
    """Returns the sorting key, best first."""
    tokens = attempt.form.sampled_tokens if attempt.form else 0
    return -_share(attempt), tokens, attempt.trajectory_id


def _first_of_kind(attempts: Sequence[ScoredTrajectory]) -> set[str]:
    """Returns, of attempts at a task that sampled the same tokens, the one with the smallest id."""
    seen: set[tuple[str, str]] = set()
    first = set()
    for attempt in sorted(attempts, key=lambda attempt: attempt.trajectory_id):
        kind = attempt.task_id, attempt.form.sampled_sha256 if attempt.form else attempt.trajectory_id
        if kind not in seen:
            seen.add(kind)
            first.add(attempt.trajectory_id)
    return first
