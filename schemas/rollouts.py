"""Counts of a run's rollouts, including those that are never trained: a header of training groups.

    headrace_rollouts: {"scored":16,"reward_sum":8.5,"groups":2,"all_success":0,"all_fail":1,"all_equal":0}

The counts are not part of the payload, because a group is a function of its members, while these counts depend on the
order in which the run's other groups were decided. A replay decides groups in another order and omits the header.
"""

from collections.abc import Iterable

from pydantic import NonNegativeInt, ValidationError

from headrace.schemas.bounds import MAX_TOTAL
from headrace.schemas.finite import MAX_REWARD
from headrace.schemas.headers import ROLLOUTS
from headrace.schemas.model import Part


class RolloutCounts(Part):
    """Counts of the rollouts that the group processor decided, trained or not, and of the groups that the variance
    filter rejected.

    Evaluations, frozen roles and rollouts without a reward are not counted.
    """

    scored: NonNegativeInt = 0
    """Rollouts with a reward."""
    reward_sum: float = 0.0
    """Sum of their rewards as scored, before length budgets."""
    groups: NonNegativeInt = 0
    """Groups that were formed, and groups whose rewards have no variance."""
    all_success: NonNegativeInt = 0
    """Groups without variance in which every member has the largest possible reward."""
    all_fail: NonNegativeInt = 0
    """Groups without variance in which no member has a reward above 0."""
    all_equal: NonNegativeInt = 0
    """All other groups without variance."""

    def plus(self, other: "RolloutCounts") -> "RolloutCounts":
        """Return the sums of both counts."""
        return RolloutCounts(
            scored=self.scored + other.scored,
            reward_sum=self.reward_sum + other.reward_sum,
            groups=self.groups + other.groups,
            all_success=self.all_success + other.all_success,
            all_fail=self.all_fail + other.all_fail,
            all_equal=self.all_equal + other.all_equal,
        )


def rollouts_header(counts: RolloutCounts) -> tuple[str, bytes]:
    """Return ``counts`` as a header."""
    return ROLLOUTS, counts.model_dump_json().encode()


def rollouts_in(headers: Iterable[tuple[str, bytes | None]]) -> RolloutCounts | None:
    """Read the counts from a record's ``headers``; return ``None`` if the header is missing, as in older records.

    Raises ``ValueError`` with a description of the problem if the header is invalid.
    """
    value = dict(headers).get(ROLLOUTS)
    if value is None:
        return None
    try:
        counts = RolloutCounts.model_validate_json(value)
    except ValidationError as error:
        raise ValueError(f"header {ROLLOUTS} is {value[:80]!r}: {error.errors()[0]['msg']}") from error
    without_variance = counts.all_success + counts.all_fail + counts.all_equal
    if max(counts.scored, counts.groups) > MAX_TOTAL or without_variance > counts.groups:
        raise ValueError(f"header {ROLLOUTS} is {value[:80]!r}: these numbers of groups or rollouts are impossible")
    if abs(counts.reward_sum) > counts.scored * MAX_REWARD:
        raise ValueError(f"header {ROLLOUTS} is {value[:80]!r}: the sum is impossible for that number of rewards")
    return counts
