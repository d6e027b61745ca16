"""Tab's reward: the published threshold, and the outcome of a suggestion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.reference import Reference
from headrace.streams.rewards.spec import Feedback
from headrace.streams.rewards.tab import TAB, Decision, decision, tab, tab_reward
from tests.streams.attempts import attempt


def feedback_of(*signals: tuple[str, float]) -> list[Feedback]:
    return [
        Feedback(f"f{offset}", signal, value, offset, Reference(partition=0, offset=offset))
        for offset, (signal, value) in enumerate(signals)
    ]


def expected(p: float, threshold: float = 0.25) -> float:
    accepted, rejected = tab_reward(Decision.ACCEPTED, threshold), tab_reward(Decision.REJECTED, threshold)
    return p * accepted + (1 - p) * rejected


@pytest.mark.parametrize(("p", "reward"), [(0.1, -0.15), (0.25, 0), (0.5, 0.25), (0.9, 0.65)])
def test_published_vectors(p: float, reward: float) -> None:
    assert expected(p) == pytest.approx(reward)


@given(st.floats(0.01, 0.99), st.floats(0, 1))
def test_showing_pays_exactly_above_the_threshold(threshold: float, p: float) -> None:
    assert expected(p, threshold) == pytest.approx(p - threshold)
    assert tab_reward(Decision.NOT_SHOWN, threshold) == 0


@pytest.mark.parametrize(
    ("signals", "total"),
    [
        ([], 0.0),
        ([("score", 1.0)], 0.0),
        ([("accepted", 1.0)], 0.75),
        ([("shown", 1.0), ("accepted", 1.0)], 0.75),
        ([("accepted", 1.0), ("shown", 1.0)], 0.75),
        ([("shown", 1.0)], -0.25),
        ([("rejected", 1.0)], -0.25),
        ([("accepted", 0.0)], -0.25),
        ([("rejected", 0.0)], 0.0),
        ([("accepted", 1.0), ("rejected", 1.0)], -0.25),
        ([("rejected", 1.0), ("accepted", 1.0)], 0.75),
    ],
)
def test_the_users_last_feedback_counts(signals: list[tuple[str, float]], total: float) -> None:
    assert TAB.score(attempt("t"), feedback_of(*signals)).total == total


@given(st.lists(st.tuples(st.sampled_from(["shown", "accepted", "rejected", "other"]), st.sampled_from([0.0, 1.0]))))
def test_feedback_of_other_kinds_changes_nothing(signals: list[tuple[str, float]]) -> None:
    assert decision(feedback_of(*signals)) is decision(feedback_of(*[each for each in signals if each[0] != "other"]))


def test_window_and_maximum_come_from_the_spec() -> None:
    spec = tab(version=2, threshold=0.4, window_ms=5_000)
    assert (spec.label, spec.maximum, spec.feedback_window_ms, spec.takes_feedback) == ("tab@2", 0.6, 5_000, True)
    with pytest.raises(ValueError, match="threshold is 1"):
        tab(version=3, threshold=1.0)
