"""Baselines: sums and invariances of advantages, and the running mean."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.streams.grouping.baselines import RunningMean, constant, leave_one_out, mean

REWARD = st.floats(-10, 10, allow_nan=False)
REWARDS = st.lists(REWARD, min_size=1, max_size=12)


def advantages(rewards: list[float], baselines: list[float]) -> list[float]:
    return [reward - baseline for reward, baseline in zip(rewards, baselines, strict=True)]


@given(REWARDS)
def test_advantages_over_the_mean_sum_to_zero(rewards: list[float]) -> None:
    assert sum(advantages(rewards, mean(rewards))) == pytest.approx(0, abs=1e-9)


@given(REWARDS)
def test_leaving_one_out_is_the_mean_of_the_others(rewards: list[float]) -> None:
    assume(len(rewards) > 1)
    for place, baseline in enumerate(leave_one_out(rewards)):
        others = rewards[:place] + rewards[place + 1 :]
        assert baseline == pytest.approx(sum(others) / len(others), abs=1e-9)


@given(REWARDS)
def test_leaving_one_out_scales_the_advantage_over_the_mean(rewards: list[float]) -> None:
    assume(len(rewards) > 1)
    factor = len(rewards) / (len(rewards) - 1)
    expected = [factor * advantage for advantage in advantages(rewards, mean(rewards))]
    assert advantages(rewards, leave_one_out(rewards)) == pytest.approx(expected, abs=1e-9)


@given(REWARDS, st.floats(-5, 5))
@pytest.mark.parametrize("baseline", [mean, leave_one_out])
def test_a_constant_added_to_every_reward_changes_no_advantage(baseline, rewards: list[float], shift: float) -> None:  # type: ignore[no-untyped-def]
    shifted = [reward + shift for reward in rewards]
    assert advantages(shifted, baseline(shifted)) == pytest.approx(advantages(rewards, baseline(rewards)), abs=1e-9)


@given(REWARDS, REWARD)
def test_a_threshold_gives_the_sign(rewards: list[float], threshold: float) -> None:
    for reward, advantage in zip(rewards, advantages(rewards, constant(rewards, threshold)), strict=True):
        assert (advantage > 0, advantage < 0) == (reward > threshold, reward < threshold)


def test_a_single_reward_has_no_advantage() -> None:
    assert advantages([0.7], leave_one_out([0.7])) == [0.0]


def running(rewards: list[float], half_life: float | None) -> RunningMean:
    found = RunningMean(("r", "s@1", "eu"))
    for reward in rewards:
        found = found.after(reward, half_life)
    return found


@given(REWARDS)
def test_without_a_half_life_the_running_mean_is_the_mean(rewards: list[float]) -> None:
    assert running(rewards, None).value(1) == pytest.approx(sum(rewards) / len(rewards), abs=1e-9)


@given(REWARDS, st.floats(0.5, 100))
def test_with_a_half_life_the_running_mean_is_weighted(rewards: list[float], half_life: float) -> None:
    weights = [0.5 ** (age / half_life) for age in reversed(range(len(rewards)))]
    expected = sum(weight * reward for weight, reward in zip(weights, rewards, strict=True)) / sum(weights)
    assert running(rewards, half_life).value(1) == pytest.approx(expected, abs=1e-6)


@given(REWARD, st.integers(1, 50), st.floats(1, 100))
def test_equal_rewards_are_their_own_running_mean(reward: float, count: int, half_life: float) -> None:
    assert running([reward] * count, half_life).value(1) == pytest.approx(reward, abs=1e-9)


def test_the_running_mean_has_no_value_while_it_warms_up() -> None:
    assert [running([1.0] * count, None).value(3) for count in range(5)] == [None, None, None, 1.0, 1.0]
