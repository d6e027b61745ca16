"""Rollouts of a run, those included that are never trained: a header of training records.

    headrace_rollouts: {"scored":16,"reward_sum":8.5,"groups":2,"all_success":0,"all_fail":1,"all_equal":0}

Not part of the payload: a group follows from its members, and these counts from the order in which other groups of the
run happened to be decided. A replay decides the same groups in another order, and writes no such header.
"""

from collections.abc import Iterable

from pydantic import NonNegativeInt, ValidationError

from headrace.schemas.bounds import MAX_TOTAL
from headrace.schemas.finite import MAX_REWARD
from headrace.schemas.headers import ROLLOUTS
from headrace.schemas.model import Part


class RolloutCounts(Part):
    """Rollouts whose fate the group processor decided, trained or not, and what the variance filter took.

    Without evaluations and frozen roles, and without rollouts that have no reward.
    """

    scored: NonNegativeInt = 0
    """Rollouts with a reward."""
    reward_sum: float = 0.0
    """Sum of their rewards, as they were scored: before length budgets."""
    groups: NonNegativeInt = 0
    """Groups that were formed, or whose rewards have no variance."""
    all_success: NonNegativeInt = 0
    """Groups without variance: every member has the largest possible reward."""
    all_fail: NonNegativeInt = 0
    """Groups without variance: no member has a reward above 0."""
    all_equal: NonNegativeInt = 0
    """Groups without variance: the others."""

    def plus(self, other: "RolloutCounts") -> "RolloutCounts":
        """Both together."""
        return RolloutCounts(
            scored=self.scored + other.scored,
            reward_sum=self.reward_sum + other.reward_sum,
            groups=self.groups + other.groups,
            all_success=self.all_success + other.all_success,
            all_fail=self.all_fail + other.all_fail,
            all_equal=self.all_equal + other.all_equal,
        )


def rollouts_header(counts: RolloutCounts) -> tuple[str, bytes]:
    """The header that tells of ``counts``."""
    return ROLLOUTS, counts.model_dump_json().encode()


def rollouts_in(headers: Iterable[tuple[str, bytes | None]]) -> RolloutCounts | None:
    """The counts that a record's ``headers`` tell; ``None`` where they tell none, as in older records.

    Raises ``ValueError`` saying what is wrong with them.
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
        raise ValueError(f"header {ROLLOUTS} is {value[:80]!r}: no such number of groups or rollouts can have been")
    if abs(counts.reward_sum) > counts.scored * MAX_REWARD:
        raise ValueError(f"header {ROLLOUTS} is {value[:80]!r}: so many rewards have no such sum")
    return counts
