"""What may be done to the advantages of a step's groups before they become a batch. Pure.

The advantage of a token n of trajectory i, from the reward to the loss:

    A_n = (r_i − b_i) / (σ + ε) − β (log π_n − log π_ref,n)

    r_i          total of the reward's components              streams/rewards/spec.py, ``RewardSpec.score``
    b_i          the group's baseline                          streams/grouping/baselines.py
    r_i − b_i    the advantage in the training record          streams/grouping/group_decision.py
    σ, ε         deviation of the group's rewards; only        here, ``scale_advantages``
                 losses with ``group_std`` divide by it
    β …          the KL penalty, where there is one            trainer/losses/kl.py, by the learner in each pass
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.schemas.records.group import TrainingGroup
from headrace.trainer.batches.batch import AdmittedGroup
from headrace.trainer.losses.settings import AdvantageScale

_EPSILON = 1e-6
"""Added to the deviation, as verl does (TRL: 1e-4). Rewards that spread less are equal but for their rounding."""


_OF_THE_GROUP = ("mean", "leave_one_out")
"""Baselines whose ``baseline_value`` is the mean of the group's scored members."""


def reward_std(group: TrainingGroup) -> float | None:
    """Sample standard deviation (n − 1) of the rewards of all of the group's scored members; of one there is none.

    Members that are scored and not trained (a defect, say) belong to it as they belong to the baseline. A record from
    before the field was kept says only how many they are and, against a mean, what their rewards add up to: they are
    then all taken for their average. That is exact where one is missing or none, and else the least that the record
    allows. Against another baseline only the members of the record count.
    """
    if group.reward_std is not None:
        return group.reward_std
    rewards = [member.reward for member in group.members]
    missing = group.scored - len(rewards)
    if missing > 0 and group.baseline in _OF_THE_GROUP:
        rewards += [(group.baseline_value * group.scored - sum(rewards)) / missing] * missing
    return _standard_deviation(rewards)


def members_std(group: TrainingGroup) -> float | None:
    """What batches of format 1 took for :func:`reward_std`: that of the record's members alone."""
    return _standard_deviation([member.reward for member in group.members])


def _standard_deviation(rewards: Sequence[float]) -> float | None:
    return statistics.stdev(rewards) if len(rewards) > 1 else None


def scale_advantages(groups: Sequence[AdmittedGroup], scale: AdvantageScale) -> list[AdmittedGroup]:
    """``groups`` with their advantages as the loss wants them.

    ``group_std`` divides by the group's :func:`reward_std`, whoever of it was admitted: the advantage was made with
    all of them. A group of one, or of equal rewards, has nothing to divide by and stays.
    """
    if scale == AdvantageScale.NONE:
        return list(groups)
    return [
        _with_advantages(group, [resolved.member.advantage / (std + _EPSILON) for resolved in group.members])
        if (std := group.reward_std) is not None and std > _EPSILON
        else group
        for group in groups
    ]


def shuffle_advantages(groups: Sequence[AdmittedGroup], *, seed: int, step: int) -> list[AdmittedGroup]:
    """The control: each group's advantages dealt out anew among its members, the same way for a seed and step.

    Lengths, tokens and the distribution of advantages stay; what a trajectory did no longer decides what it gets.
    """
    random = np.random.default_rng([seed, step])
    return [
        _with_advantages(group, random.permutation([resolved.member.advantage for resolved in group.members]).tolist())
        for group in groups
    ]


def _with_advantages(group: AdmittedGroup, advantages: Sequence[float]) -> AdmittedGroup:
    members = tuple(
        replace(resolved, member=resolved.member.model_copy(update={"advantage": advantage}))
        for resolved, advantage in zip(group.members, advantages, strict=True)
    )
    return replace(group, members=members)
