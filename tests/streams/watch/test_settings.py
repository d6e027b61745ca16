"""Settings of the monitors: which weights should decline, and what is refused."""

import pytest

from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.schedule import Schedule, Shape, linear
from headrace.streams.rewards.spec import RewardSpec, Term
from headrace.streams.watch.settings import WatchSettings, anneals_of, declared

WEIGHTS: dict[str, float | Schedule] = {
    "constant": 0.5,
    "from_one": linear(1.0, 0.0, until=20),
    "from_three": linear(3.0, 0.0, until=10),
    "to_a_tenth": linear(1.0, 0.1, until=20),
    "never_paid": linear(0.0, 0.0, until=20),
    "steps": Schedule(Shape.STEP, 2.0, 0.0, since=5, until=8),
}


def rewards() -> Rewards:
    spec = RewardSpec("x", 1, tuple(Term(name, lambda _: 1.0, weight) for name, weight in WEIGHTS.items()))
    return Rewards({}, spec)


def test_weights_that_end_at_zero_should_decline() -> None:
    assert declared(rewards()) == {"x@1": {name: WEIGHTS[name] for name in ("from_one", "from_three", "steps")}}


def test_they_decline_relative_to_their_first_value_and_settings_come_first() -> None:
    own = anneals_of(WatchSettings(), rewards())["x@1"]
    assert [own["from_three"].at(version) for version in (0, 5, 10, 11)] == [1.0, 0.5, 0.0, 0.0]
    assert [own["steps"].at(version) for version in (0, 7, 8)] == [1.0, 1.0, 0.0]
    settings = WatchSettings(anneals={"x@1": {"from_three": 2, "constant": 4}, "y@1": {"other": 1}})
    chosen = anneals_of(settings, rewards())
    assert [chosen["x@1"]["from_three"].at(version) for version in (0, 1, 2, 3)] == [1.0, 0.5, 0.0, 0.0]
    assert chosen["x@1"]["constant"].at(2) == 0.5
    assert (chosen["y@1"]["other"].at(0), chosen["y@1"]["other"].at(1)) == (1.0, 0.0)
    assert chosen["x@1"]["from_one"] == own["from_one"]


def test_a_weight_may_be_zero_from_version_one_on_and_not_before() -> None:
    assert WatchSettings(anneals={"x@1": {"shape": 1}}).anneals == {"x@1": {"shape": 1}}
    with pytest.raises(ValueError, match="a weight must be 0 from version 1 on, or later"):
        WatchSettings(anneals={"x@1": {"shape": 3, "other": 0}})
