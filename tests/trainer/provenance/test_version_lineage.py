"""The lineage of a version: every trajectory of every step that led to it, and shares that sum to 1."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.provenance.contributions import GONE, NOT_SET, Dimension, TrajectoryLabels, contributions
from headrace.trainer.provenance.evidence import Bounds, absent
from headrace.trainer.provenance.shares import Shares
from headrace.trainer.provenance.version_lineage import open_lineage
from headrace.trainer.provenance.versions import VersionGraph, spans, version_graph
from tests.trainer.provenance.history import History


def labels(history):
    return {
        place: TrajectoryLabels.model_validate(each, from_attributes=True)
        for place, each in history.trajectories.items()
    }


def history_of(seed, steps=4):
    history, rng = History(), random.Random(seed)
    for _ in range(steps):
        agent, tenant = rng.choice(["search", "checkout"]), rng.choice(["acme", "globex"])
        history.train(rng, groups=rng.randint(1, 3), task_id=f"q{rng.randint(0, 2)}", agent=agent, tenant=tenant)
    return history


def lineage_of(history, version, groups=None, trajectories=None):
    lineage = open_lineage(version_graph(history.weights, history.run), history.run, version)
    groups = history.groups if groups is None else groups
    found = labels(history) if trajectories is None else trajectories
    given = []
    for step in history.steps:
        if step.version in lineage.ancestry:
            given += (one := list(contributions(step, groups, found)))
            lineage.add(step, one, [])
    return lineage, given


@given(seed=st.integers(0, 500), version=st.integers(1, 4), lost=st.floats(0, 1))
def test_in_every_dimension_shares_sum_to_1_whatever_is_missing(seed, version, lost):
    history, rng = history_of(seed), random.Random(seed)
    groups = {place: each for place, each in history.groups.items() if rng.random() >= lost}
    found = {place: each for place, each in labels(history).items() if rng.random() >= lost}
    lineage, _ = lineage_of(history, version, groups, found)
    trained = sum(step.metrics["tokens_trained"] for step in history.steps[:version])
    assert lineage.shares.total.tokens == trained
    for shares in (lineage.shares, lineage.own):
        for dimension in Dimension:
            table = shares.table(dimension)
            assert sum(row.share for row in table) == pytest.approx(1.0)
            assert sum(row.tokens for row in table) == shares.total.tokens
            assert sum(row.trajectories for row in table) == shares.total.trajectories
    assert sum(row.tokens for row in lineage.steps) == trained
    assert all(sum(row.ages.values()) == row.tokens for row in lineage.steps)


@given(seed=st.integers(0, 500))
def test_a_version_has_exactly_the_trajectories_that_lead_to_it(seed):
    history = history_of(seed)
    graph = version_graph(history.weights, history.run)
    of_version = {version: {each.trajectory_id for each in lineage_of(history, version)[1]} for version in range(1, 5)}
    for step in history.steps:
        touched = {step.version, *graph.descendants(step.version)}
        for trajectory_id in (name for group in step.groups for name in group.trajectory_ids):
            assert {version for version, names in of_version.items() if trajectory_id in names} == touched


def test_expired_records_are_reported_and_labels_of_the_group_are_kept():
    history = history_of(3)
    lineage, given = lineage_of(history, 4, trajectories={})
    assert {each.labels[Dimension.TENANT] for each in given} == {GONE}
    assert GONE not in {each.labels[Dimension.TASK] for each in given}
    assert lineage.shares.by[Dimension.COHORT].keys() == {NOT_SET}
    assert all(each.tokens for each in given)


def test_a_record_about_another_subject_gives_no_labels():
    history = history_of(3, steps=1)
    strangers = {
        place: each.model_copy(update={"trajectory_id": "stranger"}) for place, each in labels(history).items()
    }
    others = {place: each.model_copy(update={"group_id": "other"}) for place, each in history.groups.items()}
    _, given = lineage_of(history, 1, others, strangers)
    assert {key for each in given for key in each.labels.values()} == {GONE}
    assert {each.tokens for each in given} == {None}


def test_missing_records_are_counted_by_topic_and_reason():
    history = history_of(1, steps=1)
    lineage = open_lineage(version_graph(history.weights, "run"), "run", 1)
    lost = [absent("trajectories", (0, offset), "t", Bounds(1000, 2000)) for offset in range(50)]
    lineage.add(history.steps[0], [], lost)
    assert dict(lineage.missing) == {("trajectories", "expired"): 50}
    assert len(lineage.samples) < 50
    assert lineage.steps[0].missing == 50


def test_a_step_that_cannot_be_read_leaves_a_version_unexplained():
    history = history_of(1, steps=2)
    lineage = open_lineage(version_graph(history.weights, "run"), "run", 2)
    lineage.add(history.steps[0], [], [])
    assert lineage.unexplained == [2]


def test_versions_branch_after_a_rollback():
    graph = VersionGraph({0: None, 1: 0, 2: 1, 3: 2, 4: 2, 5: 4})
    assert graph.ancestry(5).versions == (5, 4, 2, 1, 0)
    assert graph.descendants(2) == [3, 4, 5]
    assert graph.descendants(3) == []


def test_a_parent_missing_in_the_log_ends_the_line():
    ancestry = VersionGraph({4: 3, 5: 4}).ancestry(5)
    assert (ancestry.versions, ancestry.lost_at) == ((5, 4), 3)
    with pytest.raises(KeyError):
        VersionGraph({}).ancestry(1)


def test_a_parent_is_older_than_its_child():
    history = History()
    history.publish(3, 3)
    with pytest.raises(ValueError, match="version 3 of run 'run' names version 3"):
        version_graph(history.weights, "run")


def test_unknown_tokens_of_a_step_count_as_0():
    history = history_of(2, steps=1)
    step = history.steps[0].model_copy(update={"metrics": {}})
    shares = Shares()
    assert shares.add(step, contributions(step, {}, {})).tokens == 0
    assert {row.key for row in shares.table(Dimension.TASK)} == {GONE}


def test_numbers_are_shown_as_ranges():
    assert spans([9, 3, 5, 6, 7, 12, 6]) == "3, 5–7, 9, 12"
    assert spans([]) == ""
