"""Context-1's filter: what is kept in full, at a decreasing rate, as negatives; and every exclusion by its rule."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import EndStatus
from headrace.trainer.supervised.attempt import ScoredTrajectory
from headrace.trainer.supervised.context1_filter import Context1Filter
from tests.trainer.supervised.attempts import attempt, form


def decided(attempts: list[ScoredTrajectory], **settings: float) -> dict[str, str]:
    selection = Context1Filter(**settings).select(attempts)  # type: ignore[arg-type]
    return {each.trajectory_id: label for each, label in (*selection.kept, *selection.excluded)}


@pytest.mark.parametrize(
    ("recalls", "becomes"),
    [
        ((0.51, 0.41), "full"),
        ((1.0, 0.5), "full"),
        ((1.0, 0.49), "recall_gap"),
        ((0.5, 0.0), "low_recall"),  # drawn or not: the same word on both sides
    ],
)
def test_recalls_decide_what_is_kept(recalls: tuple[float, float], becomes: str) -> None:
    assert decided([attempt("a", recalls=recalls)]) == {"a": becomes}


@pytest.mark.parametrize(
    "broken",
    [
        {"status": EndStatus.TURNS_EXHAUSTED},
        {"status": None},
        {"form": form(invalid_calls=1)},
        {"form": form(unfinished_calls=1)},
    ],
)
def test_a_malformed_attempt_is_excluded_whatever_its_recall(broken: dict[str, object]) -> None:
    assert decided([attempt("a", recalls=(1, 1), **broken)]) == {"a": "malformed"}


def test_an_attempt_without_recalls_is_excluded_by_a_rule_of_its_own() -> None:
    assert decided([attempt("a")]) == {"a": "no_recall"}


def test_the_rate_decreases_towards_no_recall() -> None:
    rules = Context1Filter()
    rates = [rules.rate(share * 0.5, share * 0.4) for share in (1.0, 0.75, 0.5, 0.25, 0.0)]
    assert rates == pytest.approx([1.0, 0.5625, 0.25, 0.0625, 0.0])
    assert rules.rate(0.9, 0.39) < 1.0


def test_the_rate_is_the_share_that_is_kept() -> None:
    attempts = [attempt(f"a{i}", recalls=(0.25, 0.2)) for i in range(4000)]
    kept = Context1Filter().select(attempts).counts()["kept"]
    assert kept["low_recall"] / 4000 == pytest.approx(0.25, abs=0.03)


def test_of_a_task_the_best_is_kept() -> None:
    attempts = [
        attempt("worse", task="t", recalls=(0.9, 0.5)),
        attempt("best", task="t", recalls=(0.9, 0.9)),
        attempt("none", task="t", recalls=(0.0, 0.0)),
    ]
    assert decided(attempts) == {"best": "full", "worse": "another_of_its_task", "none": "another_of_its_task"}


def test_negatives_are_at_most_a_twentieth_of_the_kept_attempts() -> None:
    attempts = [attempt(f"n{i}", recalls=(0, 0)) for i in range(50)]
    attempts += [attempt(f"f{i}", recalls=(1, 1)) for i in range(95)]
    counts = Context1Filter().select(attempts).counts()
    assert counts == {"kept": {"full": 95, "negative": 5}, "excluded": {"too_many_negatives": 45}}
    assert Context1Filter().select(attempts[:50]).counts()["kept"] == {}


recalls = st.tuples(st.sampled_from([0.0, 0.2, 0.5, 0.6, 1.0]), st.sampled_from([0.0, 0.2, 0.4, 0.5, 1.0]))
attempts_lists = st.lists(st.tuples(recalls, st.integers(0, 9)), max_size=60).map(
    lambda drawn: [attempt(f"a{i}", task=f"t{task}", recalls=both) for i, (both, task) in enumerate(drawn)]
)


@given(attempts_lists, st.integers(0, 5), st.integers(1, 3), st.randoms())
def test_everything_is_kept_or_excluded_once_within_the_bounds_in_any_order(
    attempts: list[ScoredTrajectory], seed: int, per_task: int, order: random.Random
) -> None:
    rules = Context1Filter(seed=seed, per_task=per_task)
    selection = rules.select(attempts)
    names = [each.trajectory_id for each, _ in (*selection.kept, *selection.excluded)]
    assert sorted(names) == sorted(each.trajectory_id for each in attempts)
    assert max(Counter(each.task_id for each, _ in selection.kept).values(), default=0) <= per_task
    negatives = sum(label == "negative" for _, label in selection.kept)
    assert negatives <= 0.05 * len(selection.kept)
    order.shuffle(attempts)
    assert rules.select(attempts) == selection


@pytest.mark.parametrize(
    "wrong",
    [{"trajectory_recall": 1.0}, {"output_recall": 0}, {"negative_share": 1}, {"low_power": 0}, {"per_task": 0}],
)
def test_an_invalid_bound_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Context1Filter(**wrong)  # type: ignore[arg-type]
