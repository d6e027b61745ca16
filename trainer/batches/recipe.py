"""From a step's groups to its batch, by the recipe in the step's record; for the trainer and for ``headrace rebuild``.

Pure: the same groups, recipe and step give a bit-identical batch on every machine.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.schemas.records.step import BatchRecipe
from headrace.trainer.batches.advantages import scale_advantages, shuffle_advantages
from headrace.trainer.batches.batch import BATCH_FORMATS, AdmittedGroup
from headrace.trainer.losses.settings import AdvantageScale


class UnknownRecipe(ValueError):
    """The recipe has a part that this code does not implement; the message names it."""


def prepare_groups(groups: Sequence[AdmittedGroup], recipe: BatchRecipe, *, step: int) -> list[AdmittedGroup]:
    """Returns ``groups``, in the batch's order, with the advantages of step ``step``: shuffled, then scaled.

    Raises :class:`UnknownRecipe`.
    """
    if recipe.format not in BATCH_FORMATS:
        known = ", ".join(map(str, BATCH_FORMATS))
        raise UnknownRecipe(f"its batch has format {recipe.format}, this code makes {known}")
    if recipe.advantage_scale not in list(AdvantageScale):
        known = ", ".join(AdvantageScale)
        raise UnknownRecipe(f"its advantages are scaled by {recipe.advantage_scale!r}, this code knows {known}")
    prepared = list(groups)
    if recipe.format == 1:
        prepared = [replace(group, reward_std=group.members_std) for group in prepared]
    if recipe.shuffle_seed is not None:
        prepared = shuffle_advantages(prepared, seed=recipe.shuffle_seed, step=step)
    return scale_advantages(prepared, AdvantageScale(recipe.advantage_scale))
