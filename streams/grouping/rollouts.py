"""Counting all rollouts of a run, those included that are never trained. Pure.

A training group is what the variance filter left. A mean reward over such groups alone says little of how well the
policy does: where it solves every prompt no group is left, and prompts that it always solves are missing in the others.
So each training record tells, in a header, what was decided of its run since the training record before it that came of
the same partition of ``rewards``. Every decision is told of by one record, so whoever adds up what all of them tell has
counted each rollout once, however groups are spread over partitions and whenever a worker was restarted.

A reward that stands in ``rewards`` twice, which score does not write, counts once while its group is remembered; one
that joined no group (a latecomer, say) is rejected again, and counted again.
"""

from collections.abc import Mapping, Sequence

from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.rollouts import RolloutCounts
from headrace.streams.grouping.group_state import Candidate

_NOT_OF_TRAINING = frozenset({Reason.EVALUATION, Reason.FROZEN_ROLE})
"""Not sampled by the policy that is trained, or not in order to train it."""


def rollouts_of(outputs: Sequence[TrainingGroup | Rejection], candidates: Mapping[str, Candidate]) -> RolloutCounts:
    """The rollouts in one decision: the fates of one group, or of one reward that joined none.

    ``candidates`` has the reward of each trajectory id. Its total counts as it was scored: a member's own reward is
    what a length budget made of it.
    """
    formed = [each for each in outputs if isinstance(each, TrainingGroup)]
    rejected = [each for each in outputs if isinstance(each, Rejection)]
    names = [member.trajectory_id for group in formed for member in group.members]
    names += [each.trajectory_id for each in rejected if each.reason not in _NOT_OF_TRAINING]
    totals = [total for name in names if (total := candidates[name].total) is not None]
    reasons = {each.reason for each in rejected}
    filtered = reasons & {Reason.ALL_SUCCESS, Reason.ALL_FAIL, Reason.ALL_EQUAL}
    return RolloutCounts(
        scored=len(totals),
        reward_sum=sum(totals),
        groups=1 if formed or filtered else 0,
        all_success=int(Reason.ALL_SUCCESS in reasons),
        all_fail=int(Reason.ALL_FAIL in reasons),
        all_equal=int(Reason.ALL_EQUAL in reasons),
    )
