"""A spec scores every component it can, and labels the reason if there is no total."""

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import VersionSpan
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.judge import Judge, Rubric
from headrace.streams.rewards.registry import OURS
from headrace.streams.rewards.schedule import linear
from headrace.streams.rewards.spec import (
    Feedback,
    RewardSpec,
    Term,
    Unscorable,
    Verdict,
    judged,
    reward,
)
from tests.streams.attempts import attempt


def test_a_weight_may_follow_a_schedule_of_the_newest_version() -> None:
    @reward(weight=linear(1.0, 0.0, until=10))
    def shaping(trajectory: Trajectory) -> float:
        return 4.0

    spec = RewardSpec("annealed", 2, (shaping,))
    assert spec.label == "annealed@2"
    assert spec.score(attempt("t", version=5)).total == 2.0
    assert spec.score(attempt("t", version=20)).total == 0.0
    mixed = attempt("t", version=0)
    spans = [VersionSpan(version=0, start=0, end=1), VersionSpan(version=5, start=1, end=2)]
    mixed = mixed.model_copy(update={"segments": [mixed.segments[0].model_copy(update={"version_spans": spans})]})
    assert spec.score(mixed).components["shaping"].weight == 0.5


def test_an_uncomputable_component_leaves_the_others_recorded() -> None:
    @reward(weight=1.0)
    def known(trajectory: Trajectory) -> float:
        return 1.0

    @reward(weight=1.0)
    def judged(trajectory: Trajectory) -> float:
        raise Unscorable("judge_timeout")

    scored = RewardSpec("mixed", 1, (judged, known)).score(attempt("t"))
    assert (scored.total, scored.unscored) == (None, "judge_timeout")
    assert set(scored.components) == {"known"}


JUDGE = Judge("helpful", (Rubric("task", "The task is done."),), model="any")
HELPFUL = judged("helpful", JUDGE, weight=linear(2.0, 0.0, until=6))


def test_a_verdict_is_a_component_with_its_rubrics() -> None:
    verdict = Verdict(0.5, details={"task": 0.25, "tone": 0.75})
    scored = RewardSpec("judged", 1, (HELPFUL,)).score(attempt("t", version=3), (), {"helpful": verdict})
    assert scored.components == {"helpful": Component(value=0.5, weight=1.0, details={"task": 0.25, "tone": 0.75})}
    assert scored.total == 0.5


@pytest.mark.parametrize(
    ("verdicts", "label"),
    [
        ({}, "not_judged"),
        ({"other": Verdict(1.0)}, "not_judged"),
        ({"helpful": Verdict(None, "judge_timeout")}, "judge_timeout"),
        ({"helpful": Verdict(None)}, "not_judged"),
        ({"helpful": Verdict(math.nan)}, "helpful_not_finite"),
    ],
)
def test_without_a_verdict_there_is_no_total_and_nothing_is_guessed(verdicts: dict[str, Verdict], label: str) -> None:
    scored = RewardSpec("judged", 1, (HELPFUL,)).score(attempt("t"), (), verdicts)
    assert (scored.total, scored.unscored, scored.components) == (None, label, {})


def test_a_component_may_have_figures_that_do_not_count() -> None:
    @reward(weight=0.5, details=lambda trajectory: {"tone": 0.25, "turns": float(len(trajectory.turns))})
    def rated(trajectory: Trajectory) -> float:
        return 1.0

    scored = RewardSpec("rated", 1, (rated,)).score(attempt("t"))
    assert scored.total == 0.5
    assert scored.components["rated"].details == {"tone": 0.25, "turns": float(len(attempt("t").turns))}


def test_a_spec_declares_its_judges_and_whether_it_needs_feedback() -> None:
    @reward(weight=1.0)
    def kept(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
        return float(len(feedback))

    @reward(weight=1.0)
    def plain(trajectory: Trajectory) -> float:
        return 1.0

    spec = RewardSpec("mixed", 1, (plain, kept, HELPFUL), feedback_window_ms=5)
    assert spec.judges == (HELPFUL,)
    assert (kept.takes_feedback, plain.takes_feedback, spec.takes_feedback) == (True, False, True)
    assert not RewardSpec("plain", 1, (plain,)).takes_feedback
    arrived = [Feedback("f", "kept", 1.0, 7, Reference(partition=0, offset=1))] * 3
    assert kept(attempt("t"), arrived) == 3.0
    assert plain(attempt("t"), arrived) == 1.0


@pytest.mark.parametrize(
    "broken",
    [
        lambda trajectory: trajectory.nothing,
        lambda trajectory: 1 / 0,
        lambda trajectory: None,
        lambda trajectory: "0.5",
        lambda trajectory: 10**400,
        lambda trajectory: exec("import sys; sys.exit(0)", {}),  # a program that the model wrote
        lambda trajectory: pytest.fail("the tests of the answer fail"),
    ],
)
def test_a_component_that_raises_or_returns_no_number_is_labelled(
    broken: Callable[[Trajectory], float],
) -> None:
    @reward(weight=1.0)
    def fine(trajectory: Trajectory) -> float:
        return 1.0

    scored = RewardSpec("user", 1, (Term("broken", broken, 1.0), fine)).score(attempt("t"))
    assert (scored.total, scored.unscored) == (None, "broken_raised")
    assert set(scored.components) == {"fine"}


def test_a_component_that_raises_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @reward(weight=1.0)
    def explodes(trajectory: Trajectory) -> float:
        raise KeyError("price")

    spec = RewardSpec("logged once", 1, (explodes,))
    with caplog.at_level(logging.ERROR):
        for number in range(5):
            spec.score(attempt(f"t{number}"))
    (entry,) = [record for record in caplog.records if "logged once@1" in record.message]
    assert entry.exc_info is not None
    assert isinstance(entry.exc_info[1], KeyError)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interruption_is_never_a_label(interruption: type[BaseException]) -> None:
    def interrupted(trajectory: Trajectory) -> float:
        raise interruption

    with pytest.raises(interruption):
        RewardSpec("user", 1, (Term("interrupted", interrupted, 1.0),)).score(attempt("t"))
    combined = RewardSpec("user", 1, (Term("fine", lambda trajectory: 1.0, 1.0),), combine=interrupted)  # type: ignore[arg-type]
    with pytest.raises(interruption):
        combined.score(attempt("t"))


def test_a_failing_combination_is_labelled_too() -> None:
    @reward(weight=1.0)
    def fine(trajectory: Trajectory) -> float:
        return 1.0

    def of(combine: Callable[[Mapping[str, Component]], float]) -> str | None:
        scored = RewardSpec("combined", 1, (fine,), combine=combine).score(attempt("t"))
        assert scored.total is None
        return scored.unscored

    assert of(lambda components: components["absent"].value) == "combine_raised"
    assert of(lambda components: sys.exit(0)) == "combine_raised"
    assert of(lambda components: math.inf) == "total_not_finite"


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=1, max_size=5))
def test_the_total_is_the_weighted_sum_of_the_recorded_components(terms: list[tuple[float, float]]) -> None:
    made = tuple(
        Term(f"c{number}", lambda trajectory, value=value: value, weight)  # type: ignore[misc]
        for number, (value, weight) in enumerate(terms)
    )
    scored = RewardSpec("sum", 1, made).score(attempt("t"))
    recorded = [component.weight * component.value for component in scored.components.values()]
    assert scored.total == sum(recorded) == sum(weight * value for value, weight in terms)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a@b"}, "name without @"),
        ({"name": ""}, "name without @"),
        ({"version": 0}, "version from 1"),
        ({"terms": ()}, "at least one component"),
        ({"terms": (HELPFUL, HELPFUL)}, "different names"),
        ({"feedback_window_ms": -1}, "cannot be negative"),
    ],
)
def test_an_invalid_spec_is_an_error(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(RewardSpec("x", 1, (HELPFUL,)), **fields)


def test_a_function_of_other_parameters_is_an_error() -> None:
    with pytest.raises(TypeError, match="must take"):
        Term("odd", lambda: 1.0, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1.0, None),
        (1.0 + 1e-12, None),
        (1.1, "out_of_range"),
        (-0.5, None),
        (-0.6, "out_of_range"),
        (1e6, "out_of_range"),
        (-1e308, "out_of_range"),
    ],
)
def test_a_total_beyond_the_specs_bounds_is_out_of_range(value: float, label: str | None) -> None:
    spec = RewardSpec("bounded", 1, (Term("given", lambda trajectory: value, 1.0),), maximum=1.0, minimum=-0.5)
    scored = spec.score(attempt("t"))
    assert (scored.total, scored.unscored) == ((None, label) if label else (value, None))


@pytest.mark.parametrize(("value", "weight"), [(2e12, 1.0), (-2e12, 0.0), (1.0, 2e12), (1e12, 2.0)])
def test_no_reward_is_larger_than_can_be_added_up(value: float, weight: float) -> None:
    spec = RewardSpec("free", 1, (Term("given", lambda trajectory: value, weight),))
    scored = spec.score(attempt("t"))
    assert (scored.total, scored.unscored) == (None, "out_of_range")
    assert RewardSpec("free", 1, (Term("given", lambda trajectory: -1e12, 1.0),)).score(attempt("t")).total == -1e12


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (None, 1e13), (math.nan, None), (-math.inf, None)])
def test_invalid_bounds_are_refused(bounds: tuple[float | None, float | None]) -> None:
    with pytest.raises(ValueError, match="its totals go from"):
        RewardSpec("odd", 1, (Term("given", lambda trajectory: 0.0, 1.0),), minimum=bounds[0], maximum=bounds[1])


def test_shipped_specs_declare_their_bounds_but_for_environments_of_others() -> None:
    unbounded = [spec.label for spec in OURS.values() if spec.minimum is None or spec.maximum is None]
    assert unbounded == ["environment@1"]
