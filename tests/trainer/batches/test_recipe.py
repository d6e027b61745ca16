"""A step's record is sufficient to rebuild its batch."""

import hashlib

import numpy as np
import pytest

from headrace.schemas.records.step import BatchRecipe
from headrace.trainer.batches.advantages import members_std, reward_std, scale_advantages, shuffle_advantages
from headrace.trainer.batches.batch import BATCH_FORMAT, BATCH_FORMATS, AdmittedGroup, ResolvedMember, make_batch
from headrace.trainer.batches.recipe import UnknownRecipe, prepare_groups
from headrace.trainer.losses.settings import AdvantageScale
from tests.trainer.builders import AT, member, segment, training_group, trajectory


def group(name, *rewards, untrained=()):
    """Returns a group in which ``untrained`` rewards counted for the baseline and were not trained."""
    attempts = [trajectory(f"{name}/{i}", segment("cSS"), segment("ccS")) for i in range(len(rewards))]
    members = [member(each, advantage=r, reward=r) for each, r in zip(attempts, rewards, strict=True)]
    resolved = tuple(ResolvedMember(one, each) for one, each in zip(members, attempts, strict=True))
    scored = [*rewards, *untrained]
    std = float(np.std(scored, ddof=1)) if len(scored) > 1 else None
    record = training_group(name, members).model_copy(update={"scored": len(scored), "reward_std": std})
    return AdmittedGroup(name, AT, resolved, reward_std(record), members_std(record))


GROUPS = [group("a", 0.0, 1.0, 2.0, 5.0), group("b", 1.0, 3.0, untrained=[-6.0]), group("alone", 1.0)]


def sha256(recipe, step=3):
    return make_batch(prepare_groups(GROUPS, recipe, step=step)).sha256(recipe.format)


def test_advantages_are_shuffled_before_they_are_scaled():
    shuffled = shuffle_advantages(GROUPS, seed=7, step=3)
    expected = make_batch(scale_advantages(shuffled, AdvantageScale.GROUP_STD)).sha256()
    assert sha256(BatchRecipe(format=BATCH_FORMAT, advantage_scale="group_std", shuffle_seed=7)) == expected


def test_every_part_of_a_recipe_changes_the_hash():
    recipes = [
        BatchRecipe(),
        BatchRecipe(advantage_scale="group_std"),
        BatchRecipe(shuffle_seed=0),
        BatchRecipe(shuffle_seed=1),
    ]
    assert len({sha256(recipe) for recipe in recipes}) == len(recipes)
    assert sha256(BatchRecipe(shuffle_seed=0), step=4) != sha256(BatchRecipe(shuffle_seed=0))


def test_a_recipe_of_another_release_is_refused_by_name():
    with pytest.raises(UnknownRecipe, match=f"format {BATCH_FORMAT + 1}"):
        prepare_groups(GROUPS, BatchRecipe(format=BATCH_FORMAT + 1), step=1)
    with pytest.raises(UnknownRecipe, match="by 'rank'"):
        prepare_groups(GROUPS, BatchRecipe(advantage_scale="rank"), step=1)


KNOWN = {
    (1, "none"): "5542a901b663a44728823dc31ffe769d021c829dd597a04e72c8936495d51cfd",
    (1, "group_std"): "3c2aa3d546d39ba9e2b4a5c605ac8bce8c6289fb891bcb28dc167c8290763e2b",
    (2, "none"): "d7c4e126f14139146d8d2d9fd3365163afcaead53c6978ce90761872d3642b4e",
    (2, "group_std"): "cf738858eaae2d338ba3afe2f7d197777925d6f26bc51889fa702f6fab6d6c3f",
}


@pytest.mark.parametrize(("format_", "scale"), list(KNOWN))
def test_the_hash_of_a_known_batch_changes_only_with_the_format(format_, scale):
    assert {number for number, _ in KNOWN} == set(BATCH_FORMATS)
    found = sha256(BatchRecipe(format=format_, advantage_scale=scale))
    assert found == KNOWN[format_, scale], "raise BATCH_FORMAT: steps in the log have the old hash"


def test_the_hashes_of_the_arrays_tell_which_one_changed():
    plain, scaled = (
        make_batch(prepare_groups(GROUPS, BatchRecipe(advantage_scale=scale), step=1))
        for scale in ("none", "group_std")
    )
    one, other = plain.array_sha256(), scaled.array_sha256()
    assert {name for name in one if one[name] != other[name]} == {"advantages"}
    assert set(one) == set(plain.arrays())
    assert all(len(value) == 2 * hashlib.sha256().digest_size for value in one.values())
