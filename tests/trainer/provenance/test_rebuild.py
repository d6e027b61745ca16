"""A step's batch is rebuilt from the records that the step names; differences and missing records are reported."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.step import BatchRecipe, TrainedGroup
from headrace.trainer.batches.batch import BATCH_FORMATS
from headrace.trainer.provenance.evidence import Absence, Bounds, absent
from headrace.trainer.provenance.rebuild import RebuildResult, StepRecords, rebuild
from tests.trainer.provenance.history import History

RECIPES = st.builds(
    BatchRecipe,
    format=st.sampled_from(BATCH_FORMATS),
    advantage_scale=st.sampled_from(["none", "group_std"]),
    shuffle_seed=st.none() | st.integers(0, 9),
)


def evidence(history):
    return StepRecords(history.groups, history.trajectories)


@pytest.fixture
def history():
    made = History()
    rng = random.Random(5)
    for _ in range(3):
        made.train(rng, recipe=BatchRecipe(advantage_scale="group_std", shuffle_seed=3))
    return made


@given(seed=st.integers(0, 1000), recipe=RECIPES)
def test_the_batch_is_rebuilt_identically_for_every_recipe(seed, recipe):
    history = History()
    rng = random.Random(seed)
    steps = [history.train(rng, groups=rng.randint(1, 4), recipe=recipe) for _ in range(3)]
    for step in steps:
        made = rebuild(step, evidence(history))
        assert (made.verdict, made.sha256, made.differing) == (RebuildResult.MATCHES, step.data_sha256, ())
        assert [group.as_trained() for group in made.groups] == step.groups


def place_in(step, group, number):
    reference = step.groups[group].trajectories[number]
    return reference.partition, reference.offset


def test_differing_arrays_are_named(history):
    step = history.steps[1]
    place = place_in(step, 0, 0)
    was = history.trajectories[place]
    edited = was.segments[0].model_copy(update={"token_ids": [49] * len(was.segments[0].token_ids)})
    history.trajectories[place] = was.model_copy(update={"segments": [edited, *was.segments[1:]]})
    made = rebuild(step, evidence(history))
    assert (made.verdict, made.differing) == (RebuildResult.DIFFERS, ("token_ids",))
    assert made.batch is not None
    assert rebuild(history.steps[0], evidence(history)).verdict is RebuildResult.MATCHES


def test_another_scale_changes_the_advantages_alone(history):
    step = history.steps[0].model_copy(update={"recipe": BatchRecipe(shuffle_seed=3)})
    assert rebuild(step, evidence(history)).differing == ("advantages",)


def test_records_that_make_no_batch_differ_with_a_reason(history):
    step = history.steps[0]
    was = history.trajectories[place_in(step, 0, 0)]
    bare = [each.model_copy(update={"logprobs": None}) for each in was.segments]
    history.trajectories[place_in(step, 0, 0)] = was.model_copy(update={"segments": bare})
    made = rebuild(step, evidence(history))
    assert (made.verdict, made.batch) == (RebuildResult.DIFFERS, None)
    assert "lacks log-probabilities" in made.problem


def test_expired_records_are_reported_and_not_guessed(history):
    step = history.steps[0]
    gone = place_in(step, 0, 0)
    lost = absent("trajectories", gone, step.groups[0].trajectory_ids[0], Bounds(gone[1] + 1, 10_000))
    there = {place: each for place, each in history.trajectories.items() if place != gone}
    made = rebuild(step, StepRecords(history.groups, there, [lost]))
    assert (made.verdict, made.batch, made.missing) == (RebuildResult.INCOMPLETE, None, (lost,))


def test_a_record_about_another_subject_counts_as_missing(history):
    step = history.steps[0]
    at = place_in(step, 0, 0)
    history.trajectories[at] = history.trajectories[at].model_copy(update={"trajectory_id": "stranger"})
    made = rebuild(step, evidence(history))
    assert (made.verdict, [each.subject for each in made.missing]) == (
        RebuildResult.INCOMPLETE,
        step.groups[0].trajectory_ids[:1],
    )
    assert "stranger is at this place" in made.missing[0].detail

    group = TrainedGroup(**step.groups[1].model_dump() | {"group_id": "renamed"})
    other = rebuild(step.model_copy(update={"groups": [group]}), evidence(history))
    assert [(each.topic, each.absence) for each in other.missing] == [("training", Absence.ANOTHER)]


@pytest.mark.parametrize("scale", ["none", "group_std"])
def test_a_step_without_a_recipe_is_tried_with_each_scale(scale):
    history = History()
    step = history.train(random.Random(1), recipe=BatchRecipe(advantage_scale=scale))
    old = step.model_copy(update={"recipe": None, "array_sha256": {}})
    made = rebuild(old, evidence(history))
    assert (made.verdict, made.assumed) == (RebuildResult.MATCHES, BatchRecipe(advantage_scale=scale))


def test_a_recipe_of_another_release_is_reported_as_unknown(history):
    step = history.steps[0].model_copy(update={"recipe": BatchRecipe(format=99)})
    made = rebuild(step, evidence(history))
    assert made.verdict is RebuildResult.UNKNOWN_RECIPE
    assert "format 99" in made.problem


def test_the_reason_of_an_absence_depends_on_the_partitions_bounds():
    def why(bounds):
        return absent("trajectories", (2, 50), "t", bounds).absence

    assert why(Bounds(51, 90)) is Absence.EXPIRED
    assert why(Bounds(50, 90)) is Absence.REMOVED
    assert why(Bounds(0, 50)) is Absence.BEYOND
    assert why(None) is Absence.BEYOND
