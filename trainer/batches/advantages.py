"""What may be done to the advantages of a step's groups before they become a batch. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.schemas.records.group import TrainingGroup
from headrace.trainer.batches.batch import AdmittedGroup
from headrace.trainer.losses.settings import AdvantageScale

_EPSILON = 1e-6
"""Added to the deviation, as verl does (TRL: 1e-4). Rewards that spread less are equal but for their rounding."""


def reward_std(group: TrainingGroup) -> float | None:
    """Sample standard deviation (n − 1) of the rewards of all of the record's members; of one there is none."""
    rewards = [member.reward for member in group.members]
    return statistics.stdev(rewards) if len(rewards) > 1 else None


def scale_advantages(groups: Sequence[AdmittedGroup], scale: AdvantageScale) -> list[AdmittedGroup]:
    """``groups`` with their advantages as the loss wants them.

    ``group_std`` divides by the sample standard deviation (n − 1) of the rewards of all the group's members, also of
    those that were not admitted: the advantage was made with them too. A group of one, or of equal rewards, has nothing
    to divide by and stays.
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
