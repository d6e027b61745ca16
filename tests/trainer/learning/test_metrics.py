import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.learning.metric_registry import metric_named
from headrace.trainer.learning.metrics import (
    counts_by_age,
    mismatch_metrics,
    reference_kl,
    staleness_metrics,
    substep_metrics,
)


def metrics_of(ratios, lags=None):
    logprobs = np.log(np.asarray(ratios, np.float64)).astype(np.float32)
    lag_of = np.zeros(len(ratios), np.int64) if lags is None else np.asarray(lags)
    return mismatch_metrics(logprobs, np.zeros(len(ratios), np.float32), lag_of)


def test_mismatch_by_hand():
    found = metrics_of([1.0, 2.0, 0.5])
    assert found["importance_ratio_mean"] == pytest.approx(3.5 / 3)
    assert found["importance_ratio_max"] == pytest.approx(2.0)
    assert found["effective_sample_size"] == pytest.approx(3.5**2 / (3 * 5.25))
    assert found["kl_k1"] == pytest.approx(0.0, abs=1e-7)
    assert found["kl_k3"] == pytest.approx(((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2))) / 3)
    assert found["chi2"] == pytest.approx(5.25 / 3 - 1)


def test_the_movement_by_substeps_by_hand():
    before = np.log(np.asarray([0.25, 0.5, 0.5])).astype(np.float32)
    trained = np.log(np.asarray([0.75, 0.5, 0.25])).astype(np.float32)
    found = substep_metrics(before, trained)
    assert found["substep_kl"] == pytest.approx(((3 - 1 - math.log(3)) + (0.5 - 1 - math.log(0.5))) / 3, rel=1e-5)
    assert found["substep_ratio_max"] == pytest.approx(3.0, rel=1e-5)


def test_the_same_policy_has_no_mismatch():
    found = metrics_of([1.0] * 5)
    assert (found["effective_sample_size"], found["kl_k1"], found["kl_k3"], found["chi2"]) == (1.0, 0.0, 0.0, 0.0)


def test_the_engines_mismatch_is_measured_on_fresh_tokens_only():
    found = metrics_of([1.0, math.exp(0.005), math.exp(-0.01), 3.0], lags=[0, 0, 0, 1])
    assert found["mismatch_logprob_max"] == pytest.approx(0.01, rel=1e-4)
    assert found["mismatch_kl"] < 1e-4 < found["kl_k3"]
    assert "mismatch_kl" not in metrics_of([1.0], lags=[2])


def every_token(policy, sampler, reference):
    """Returns the mean over tokens that occur as often as ``sampler`` samples them: an expectation without noise."""
    counts = np.round(np.asarray(sampler) * 1000).astype(int)
    columns = (
        np.repeat(np.log(np.asarray(each, np.float64)), counts).astype(np.float32)
        for each in (policy, sampler, reference)
    )
    logprobs, behaviour, compared = columns
    return reference_kl(logprobs, behaviour, compared)["kl_reference"]


def test_the_kl_from_the_reference_does_not_depend_on_the_sampler():
    policy, sampler, base = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.7, 0.2]

    def kl(one, other):
        return sum(p * math.log(p / q) for p, q in zip(one, other, strict=True))

    assert every_token(policy, sampler, base) == pytest.approx(kl(policy, base), rel=1e-5)
    assert every_token(policy, sampler, sampler) == pytest.approx(kl(policy, sampler), rel=1e-5)
    assert every_token(policy, policy, base) == pytest.approx(kl(policy, base), rel=1e-5)
    assert every_token(policy, policy, policy) == 0.0


@given(st.lists(st.floats(-200, 200), min_size=1, max_size=50))
def test_estimates_stay_finite_and_in_their_bounds(log_ratios):
    logprobs = np.asarray(log_ratios, np.float32)
    found = mismatch_metrics(logprobs, np.zeros_like(logprobs), np.zeros(len(logprobs), np.int64))
    assert all(math.isfinite(value) for value in found.values())
    assert 0 < found["effective_sample_size"] <= 1 + 1e-9
    assert found["kl_k3"] >= -1e-9


def test_staleness_by_hand():
    found = staleness_metrics(np.array([0, 0, 1, 4]))
    assert found == {
        "staleness_p50": 0.5,
        "staleness_p95": pytest.approx(3.55),
        "staleness_max": 4.0,
        "staleness_zero": 0.5,
        **counts_by_age("tokens", [0, 0, 1, 4]),
    }


def test_ages_are_counted_in_fixed_buckets():
    buckets = ["unknown", "0", "1", "2", "3_4", "5_8", "9_up"]
    found = counts_by_age("admitted", [0, 1, 1, 2, 3, 4, 4, 5, 8, 9, 400, -3])
    assert found == dict(zip([f"admitted_age_{name}" for name in buckets], [1, 1, 2, 1, 3, 2, 2], strict=True))
    assert counts_by_age("admitted", []) == dict.fromkeys(found, 0)
    assert all(metric_named(f"{name}_age_9_up") for name in ("tokens", "admitted", "rejected"))
