"""Toggle: when a length budget counts, and where it comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.rewards.toggle import Toggle, length_budgets, toggled

TOGGLE = Toggle(period=10, accuracy=0.5, budgets={"known": 100})
LIMITING, FREE = 0, 10
"""Policy versions of either phase."""


def counted(rewards: list[float], *, task_id: str = "known", version: int = LIMITING) -> list[float]:
    return toggled(rewards, [50, 100, 101, 900], task_id=task_id, version=version, toggle=TOGGLE)


def test_in_the_first_phase_a_mastered_task_pays_only_within_its_budget() -> None:
    assert counted([1.0, 1.0, 1.0, 1.0]) == [1.0, 1.0, 0.0, 0.0]
    assert counted([1.0, 0.0, 0.0, 1.0]) == [1.0, 0.0, 0.0, 0.0], "an accuracy of λ is mastered"


def test_a_task_that_is_not_mastered_pays_at_any_length() -> None:
    assert counted([0.0, 0.0, 0.0, 1.0]) == [0.0, 0.0, 0.0, 1.0]


def test_in_the_second_phase_every_reward_counts_as_it_is() -> None:
    assert counted([1.0, 1.0, 1.0, 1.0], version=FREE) == [1.0, 1.0, 1.0, 1.0]


def test_a_task_without_a_budget_is_never_limited() -> None:
    assert counted([1.0, 1.0, 1.0, 1.0], task_id="never solved") == [1.0, 1.0, 1.0, 1.0]


def test_a_task_without_a_budget_of_its_own_has_that_of_its_source() -> None:
    toggle = Toggle(period=10, accuracy=0.5, budgets={"known": 100}, source_budgets={"wide": 50})
    assert (toggle.budget("known", "wide"), toggle.budget("new", "wide"), toggle.budget("new")) == (100, 50, None)
    found = toggled([1.0, 1.0], [50, 51], task_id="new", source="wide", version=LIMITING, toggle=toggle)
    assert found == [1.0, 0.0]
    with pytest.raises(ValueError, match="source_budgets are negative for deep"):
        Toggle(source_budgets={"wide": 1, "deep": -1})


def test_phases_take_turns() -> None:
    assert [TOGGLE.limits(version) for version in (0, 9, 10, 19, 20, 29, 30)] == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
    ]


def test_accuracy_may_be_given_separately_from_the_reward() -> None:
    judged = toggled([0.4, 0.2], [10, 900], task_id="known", version=LIMITING, toggle=TOGGLE, correct=[1.0, 1.0])
    assert judged == [0.4, 0.0]


@pytest.mark.parametrize(
    ("percentile", "budget"), [(1, 10), (25, 10), (26, 20), (50, 20), (75, 30), (90, 40), (100, 40)]
)
def test_a_budget_is_the_nearest_rank_percentile_of_the_correct_lengths(percentile: float, budget: int) -> None:
    responses = [("t", 1.0, length) for length in (30, 10, 40, 20)] + [("t", 0.0, 5), ("u", 0.0, 7)]
    assert length_budgets(responses, percentile=percentile) == {"t": budget}


@pytest.mark.parametrize(("percentile", "count"), [(14, 50), (7, 100), (28, 25), (55, 20), (0.7, 1000), (2.3, 1000)])
def test_a_percentile_that_is_a_whole_number_of_responses_is_that_one(percentile: float, count: int) -> None:
    responses = [("t", 1.0, length) for length in range(1, count + 1)]
    assert length_budgets(responses, percentile=percentile) == {"t": round(percentile * count / 100)}


groups = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 1000)), min_size=1, max_size=16)


@given(groups, st.integers(0, 100))
def test_a_reward_is_kept_or_becomes_zero_and_a_zero_stays_zero(group: list[tuple[float, int]], version: int) -> None:
    rewards, lengths = [reward for reward, _ in group], [length for _, length in group]
    made = toggled(rewards, lengths, task_id="known", version=version, toggle=TOGGLE)
    assert all(after in (before, 0.0) for before, after in zip(rewards, made, strict=True))
    assert all(after == before for before, after, length in zip(rewards, made, lengths, strict=True) if length <= 100)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0]), st.integers(0, 500))))
def test_the_full_percentile_keeps_every_correct_response(responses: list[tuple[str, float, int]]) -> None:
    budgets = length_budgets(responses, percentile=100)
    assert budgets.keys() == {task for task, outcome, _ in responses if outcome == 1.0}
    assert all(length <= budgets[task] for task, outcome, length in responses if outcome == 1.0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"period": 0}, "period"), ({"accuracy": 0.0}, "accuracy"), ({"budgets": {"t": -1}}, "budgets")],
)
def test_invalid_settings_are_named(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Toggle(**settings)  # type: ignore[arg-type]


def test_lists_of_different_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 rewards, 1 lengths"):
        toggled([1.0, 1.0], [5], task_id="known", version=0, toggle=TOGGLE)
    with pytest.raises(ValueError, match="percentile is 0"):
        length_budgets([], percentile=0)
