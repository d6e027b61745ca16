"""The short form of ``warm_up.py``: fewer tasks."""

from collections import Counter

import pytest

from tests.experiments.warm_up import MEANINGS, Filtered, filtered

TASKS, PER_TASK = 120, 4


@pytest.fixture(scope="module")
def found() -> Filtered:
    return filtered(TASKS, PER_TASK)


def test_every_demonstration_is_kept_or_excluded_once(found: Filtered) -> None:
    names = [attempt.trajectory_id for attempt, _ in (*found.selection.kept, *found.selection.excluded)]
    assert sorted(names) == sorted(attempt.trajectory_id for attempt in found.attempts)
    assert len(names) == TASKS * PER_TASK


def test_the_demonstrators_mistakes_fall_under_every_rule(found: Filtered) -> None:
    single = filtered(TASKS, per_task=1)
    labels = {label for each in (single, found) for _, label in each.by_hops()}
    assert labels == set(MEANINGS)


def test_what_is_kept_is_better_than_all_and_one_of_a_task(found: Filtered) -> None:
    assert found.mean_share(found.kept) > found.mean_share(found.attempts) + 0.15
    assert set(Counter(attempt.task_id for attempt in found.kept).values()) == {1}


def test_negatives_are_at_most_a_twentieth(found: Filtered) -> None:
    labels = Counter(label for _, label in found.selection.kept)
    assert 0 < labels["negative"] <= 0.05 * labels.total()


def test_what_ended_without_an_answer_is_malformed(found: Filtered) -> None:
    without = {attempt.trajectory_id for attempt in found.attempts if attempt.status != "completed"}
    malformed = {attempt.trajectory_id for attempt, label in found.selection.excluded if label == "malformed"}
    assert without
    assert without < malformed
