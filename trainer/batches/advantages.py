"""Transformations of the advantages of a step's groups before they become a batch. Pure.

The advantage of token n of trajectory i is computed in five places (GRPO's form: Shao et al. 2024; KL: Schulman 2020):

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
"""Added to the deviation, as verl does (TRL: 1e-4). Rewards with a smaller deviation differ by rounding only."""


_OF_THE_GROUP = ("mean", "leave_one_out")
"""Baselines whose ``baseline_value`` is the mean of the group's scored members."""


def reward_std(group: TrainingGroup) -> float | None:
    """Returns the sample standard deviation (n − 1) of the rewards of all scored members; ``None`` for a single one.

    σ of the formula above. Members that are scored but not trained (because of a defect, say) count, as they count for
    the baseline. Records written before ``reward_std`` existed hold only the number of scored members and, with a mean
    as baseline, the sum of their rewards: missing members then count with their average. That is exact if at most one
    is missing, and otherwise the least deviation that the record allows. With another baseline only the record's
    members count.
    """
    if group.reward_std is not None:
        return group.reward_std
    rewards = [member.reward for member in group.members]
    missing = group.scored - len(rewards)
    if missing > 0 and group.baseline in _OF_THE_GROUP:
        rewards += [(group.baseline_value * group.scored - sum(rewards)) / missing] * missing
    return _standard_deviation(rewards)


def members_std(group: TrainingGroup) -> float | None:
    """Returns what batches of format 1 used as :func:`reward_std`: the deviation of the record's members alone."""
    return _standard_deviation([member.reward for member in group.members])


def _standard_deviation(rewards: Sequence[float]) -> float | None:
    return statistics.stdev(rewards) if len(rewards) > 1 else None


def scale_advantages(groups: Sequence[AdmittedGroup], scale: AdvantageScale) -> list[AdmittedGroup]:
    """Returns ``groups`` with their advantages scaled as the loss requires: (r − b) / (σ + ε) for ``group_std``.

    σ is the group's :func:`reward_std`, whichever members were admitted, because the baseline too was computed over all
    of them. The advantages of a single member, or of equal rewards, are not divided.
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
    """Returns the control experiment: each group's advantages permuted among its members, by ``seed`` and ``step``.

    Lengths, tokens and the distribution of advantages stay the same; a trajectory's advantage no longer depends on its
    actions.
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
