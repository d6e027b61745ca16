"""Which recorded log-probabilities are plausible: correct ones however stale, and no others."""

import numpy as np
import pytest

from headrace.trainer.learning.plausibility import PlausibilitySettings, implausible_trajectories


def normalised(logits_NV):
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


def policy(rng, length, spread, vocabulary=20):
    """(N, V) log-probabilities of each token at each place."""
    return normalised(rng.normal(0, spread, (length, vocabulary)))


def moved(rng, policy_NV, by):
    return normalised(policy_NV + rng.normal(0, by, policy_NV.shape))


def sampled(rng, policy_NV, count):
    """(count, N) tokens drawn from a policy."""
    return np.stack([(policy_NV + rng.gumbel(size=policy_NV.shape)).argmax(-1) for _ in range(count)])


def of_tokens(policy_NV, tokens_MN):
    return np.take_along_axis(policy_NV[None], tokens_MN[..., None], 2)[..., 0]


def found(before_MN, recorded_MN, lag=4, **settings):
    count, length = before_MN.shape
    return implausible_trajectories(
        before_MN.ravel().astype(np.float32),
        recorded_MN.ravel().astype(np.float32),
        np.full(count * length, lag),
        np.repeat(np.arange(count), length),
        PlausibilitySettings(**settings),
    )


@pytest.mark.parametrize("length", [1, 8, 64, 1000])
@pytest.mark.parametrize("by", [0.0, 0.1, 0.5, 2.0, 5.0], ids=lambda by: f"drift {by}")
def test_a_correct_record_is_plausible_however_far_the_policy_has_moved(by, length):
    """A drift of 0.1 is a step or two; 5 is another policy altogether."""
    rng = np.random.default_rng(length)
    behaviour = policy(rng, length, 2.0)
    tokens = sampled(rng, behaviour, 100)
    assert found(of_tokens(moved(rng, behaviour, by), tokens), of_tokens(behaviour, tokens)) == ()


@pytest.mark.parametrize("lag", [0, 4])
def test_the_record_of_an_engine_in_bfloat16_is_plausible(lag):
    rng = np.random.default_rng(0)
    behaviour = policy(rng, 2000, 2.0)
    tokens = sampled(rng, behaviour, 50)
    assert found(of_tokens(moved(rng, behaviour, 0.1), tokens), of_tokens(behaviour, tokens), lag) == ()


def test_a_single_token_recorded_far_too_low_is_implausible():
    rng = np.random.default_rng(1)
    behaviour = policy(rng, 300, 2.0)
    tokens = sampled(rng, behaviour, 4)
    recorded = of_tokens(behaviour, tokens)
    before = of_tokens(moved(rng, behaviour, 0.1), tokens)
    recorded[1] = -20.0
    recorded[2, before[2].argmax()] = -20.0
    assert found(before, recorded) == (1, 2)
    assert found(before, recorded, too_low=None) == ()


def test_log_probabilities_of_other_tokens_are_implausible():
    """Paired with the token before: the sum is the same."""
    rng = np.random.default_rng(2)
    behaviour = policy(rng, 200, 2.0)
    recorded = of_tokens(behaviour, sampled(rng, behaviour, 10))
    assert found(recorded, np.roll(recorded, 1, axis=1)) == tuple(range(10))


def test_log_probabilities_at_another_temperature_are_implausible():
    rng = np.random.default_rng(3)
    plain = policy(rng, 400, 2.0)
    cold = normalised(plain / 0.6)
    tokens = sampled(rng, cold, 10)
    assert found(of_tokens(cold, tokens), of_tokens(plain, tokens)) == tuple(range(10))


def test_log_probabilities_recorded_too_high_are_implausible_for_fresh_tokens():
    rng = np.random.default_rng(4)
    behaviour = policy(rng, 60, 1.0)
    before = of_tokens(behaviour, sampled(rng, behaviour, 10))
    assert found(before, np.zeros_like(before), lag=0) == tuple(range(10))
    assert found(before, np.zeros_like(before), lag=0, too_high=None) == ()
    assert found(before, np.zeros_like(before), lag=1) == ()  # a policy may have moved far; the ratio is small


def test_a_policy_that_gives_nan_is_no_evidence_against_a_record():
    assert found(np.full((2, 3), np.nan), np.full((2, 3), -1.0), lag=0) == ()


@pytest.mark.parametrize("settings", [{"too_low": 0}, {"too_high": -1}, {"allowance": -1}, {"too_low": float("nan")}])
def test_invalid_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        PlausibilitySettings(**settings)
