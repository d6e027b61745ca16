"""From a step's groups to its batch, by the recipe that the step's record keeps: for the trainer and for who rebuilds.

Pure: the same groups, recipe and step give the same batch, to the bit, on every machine.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.schemas.records.step import BatchRecipe
from headrace.trainer.batches.advantages import scale_advantages, shuffle_advantages
from headrace.trainer.batches.batch import BATCH_FORMATS, AdmittedGroup
from headrace.trainer.losses.settings import AdvantageScale


class UnknownRecipe(ValueError):
    """The recipe asks for what this code does not know; the message says which part of it."""


def prepare_groups(groups: Sequence[AdmittedGroup], recipe: BatchRecipe, *, step: int) -> list[AdmittedGroup]:
    """``groups``, in the batch's order, with the advantages that step ``step`` trains: shuffled, then scaled.

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
