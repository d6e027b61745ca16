"""Counts all rollouts of a run, including those that are never trained. Pure.

Training groups are what remains after the variance filter. A mean reward over them says little about the policy: if it
solves every prompt, no group remains, and prompts that it always solves are missing from the others. So each training
record carries, in a header, the counts of all decisions of its run since the previous training record of the run from
the same partition of ``rewards``. Every decision is reported by exactly one record, so the sum over all records counts
each rollout once, regardless of partitions and worker restarts.

A reward that is in ``rewards`` twice (score does not write duplicates) counts once while its group is remembered. A
duplicate of a reward that joined no group (a late one, for example) is rejected and counted again.
"""

from collections.abc import Mapping, Sequence

from headrace.schemas.records.group import ZERO_VARIANCE, Reason, Rejection, TrainingGroup
from headrace.schemas.rollouts import RolloutCounts
from headrace.streams.grouping.group_state import Candidate

_NOT_OF_TRAINING = frozenset({Reason.EVALUATION, Reason.FROZEN_ROLE})
"""Reasons of rollouts that the trained policy did not sample, or that were not sampled for training."""


def rollouts_of(outputs: Sequence[TrainingGroup | Rejection], candidates: Mapping[str, Candidate]) -> RolloutCounts:
    """Returns the rollouts in one decision: the fates of one group, or of one reward that joined no group.

    ``candidates`` has the reward of each trajectory id. The scored total counts, because a length budget may have
    changed the member's reward.
    """
    formed = [each for each in outputs if isinstance(each, TrainingGroup)]
    rejected = [each for each in outputs if isinstance(each, Rejection)]
    names = [member.trajectory_id for group in formed for member in group.members]
    names += [each.trajectory_id for each in rejected if each.reason not in _NOT_OF_TRAINING]
    totals = [total for name in names if (total := candidates[name].total) is not None]
    reasons = {each.reason for each in rejected}
    filtered = reasons & ZERO_VARIANCE
    return RolloutCounts(
        scored=len(totals),
        reward_sum=sum(totals),
        groups=1 if formed or filtered else 0,
        all_success=int(Reason.ALL_SUCCESS in reasons),
        all_fail=int(Reason.ALL_FAIL in reasons),
        all_equal=int(Reason.ALL_EQUAL in reasons),
    )
