"""Composer's length cost: the published vectors, its shape, and the lengths it uses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.trajectory import Segment, ToolUse, Trajectory, Turn
from headrace.streams.rewards.length_cost import Lengths, length_cost, length_penalty, measured, weighted
from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.spec import RewardSpec
from tests.streams.attempts import attempt, prunes, shows


@pytest.mark.parametrize(
    ("k", "q", "x", "cost"),
    [
        (1, 0.5, 0, 0),
        (1, 0.5, 1, 0.8284),
        (1, 0.5, 10, 4.6332),
        (1, 0.5, 100, 18.0998),
        (0.01, 2, 1, 0.9901),
        (0.01, 2, 10, 9.0909),
        (0.01, 2, 100, 50),
        (0.01, 2, 1000, 90.9091),
    ],
)
def test_published_vectors(k: float, q: float, x: float, cost: float) -> None:
    assert length_cost(x, k=k, q=q) == pytest.approx(cost, abs=5e-5)


# A length times a rate keeps the precision of a double; below 1e-308 it would not.
lengths = st.just(0.0) | st.floats(1e-300, 1e6)
rates = st.floats(1e-4, 10)
curvatures = st.floats(0, 3)


@given(lengths, rates, st.floats(-1e-6, 1e-6))
def test_near_one_the_cost_is_the_logarithm(x: float, k: float, off: float) -> None:
    assert length_cost(x, k=k, q=1) == pytest.approx(math.log1p(k * x) / k)
    assert length_cost(x, k=k, q=1 + off) == pytest.approx(length_cost(x, k=k, q=1), rel=1e-4)


@given(lengths, rates)
def test_at_zero_the_cost_is_the_length(x: float, k: float) -> None:
    assert length_cost(x, k=k, q=0) == pytest.approx(x, rel=1e-9)


@given(lengths, st.floats(1e-3, 1e3), rates, curvatures)
def test_longer_costs_more_but_less_and_less(x: float, more: float, k: float, q: float) -> None:
    first, second, third = (length_cost(x + steps * more, k=k, q=q) for steps in range(3))
    rounding = 1e-9 * (1 + third)
    assert third + rounding >= second >= first - rounding
    assert third - second <= second - first + rounding


@given(rates, curvatures)
def test_zero_stays_zero(k: float, q: float) -> None:
    assert length_cost(0, k=k, q=q) == 0


@given(lengths, rates, curvatures)
def test_the_cost_is_never_more_than_the_length(x: float, k: float, q: float) -> None:
    assert 0 <= length_cost(x, k=k, q=q) <= x * (1 + 1e-9)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("x", "k", "q"),
    [(-1, 1, 1), (1, 0, 1), (1, 1, -1), (NAN, 1, 1), (1, NAN, 1), (1, 1, NAN), (INF, 1, 1), (1, INF, 1), (1, 1, INF)],
)
def test_settings_outside_the_formula_are_an_error(x: float, k: float, q: float) -> None:
    with pytest.raises(ValueError, match="are needed"):
        length_cost(x, k=k, q=q)


def long_attempt() -> Trajectory:
    """Two turns with tools, one without; a second context that was rewritten."""
    masks = [[0, 0, 0, 1, 1, 0, 0, 1], [0] * 9 + [1, 1, 1], [0, 0]]
    segments = [
        Segment(token_ids=list(range(len(mask))), loss_mask=mask, logprobs=None, version_spans=[]) for mask in masks
    ]
    turns = [shows("c1"), prunes(2), Turn(sampled_tokens=3)]
    return attempt("t", turns=turns).model_copy(update={"segments": segments})


def test_lengths_are_counted_from_the_record() -> None:
    assert measured(long_attempt()) == Lengths(acting_tokens=4, answer_tokens=3, read_tokens=2, tool_calls=3, turns=3)
    weights = Lengths(acting_tokens=1, answer_tokens=2, read_tokens=0.5, tool_calls=10, turns=100)
    assert weighted(measured(long_attempt()), weights) == 4 + 6 + 1 + 30 + 300


def test_thinking_has_a_weight_of_its_own_where_the_agent_distinguishes_it() -> None:
    use = ToolUse(call_id="c", tool="edit", thinking_tokens=5)
    more_than_sampled = use.model_copy(update={"thinking_tokens": 50})
    turns = [Turn(sampled_tokens=12, tools=[use]), Turn(sampled_tokens=4, tools=[more_than_sampled]), shows("c1")]
    found = measured(attempt("t", turns=turns))
    assert (found.thinking_tokens, found.acting_tokens) == (5 + 4, 12 - 5 + 0 + 2)
    assert weighted(found, Lengths(thinking_tokens=1)) == 9
    assert Lengths(thinking_tokens=1).in_tokens


def test_the_penalty_is_one_component_among_others() -> None:
    penalty = length_penalty(weights=Lengths(turns=1), k=1, q=1, weight=-0.1)
    scored = RewardSpec("brief", 1, (outcome, penalty)).score(long_attempt())
    assert scored.components["length_cost"].value == pytest.approx(math.log(4))
    assert scored.total == pytest.approx(1 - 0.1 * math.log(4))


def test_unrecorded_tokens_are_not_counted_as_zero() -> None:
    closed = long_attempt().model_copy(update={"segments": []})
    in_turns = length_penalty(weights=Lengths(turns=1), k=1, q=1, weight=-0.1)
    in_tokens = length_penalty(weights=Lengths(answer_tokens=1), k=1, q=1, weight=-0.1)
    assert RewardSpec("brief", 1, (in_turns,)).score(closed).total is not None
    scored = RewardSpec("brief", 2, (in_tokens,)).score(closed)
    assert (scored.total, scored.unscored) == (None, "no_token_counts")


def test_wrong_weights_are_an_error_when_the_spec_is_made() -> None:
    with pytest.raises(ValueError, match="turns is -1"):
        Lengths(turns=-1)
    with pytest.raises(ValueError, match="k 0"):
        length_penalty(weights=Lengths(turns=1), k=0, q=1, weight=-0.1)
