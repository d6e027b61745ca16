"""Metrics over all rollouts, by values counted by hand."""

import pytest

from headrace.schemas.rollouts import RolloutCounts
from headrace.trainer.learning.metric_registry import metric_named
from headrace.trainer.learning.rollouts import added, rollout_metrics


def test_means_and_shares_are_over_all_rollouts_and_groups():
    # Ten groups of four: five formed with a mean of 0.5, three all success, one all fail, one all 0.5.
    counts = RolloutCounts(
        scored=40, reward_sum=20 * 0.5 + 12 + 0 + 4 * 0.5, groups=10, all_success=3, all_fail=1, all_equal=1
    )
    assert rollout_metrics(counts) == {
        "rollouts": 40.0,
        "rollout_groups": 10.0,
        "rollout_reward_mean": pytest.approx(0.6),
        "zero_variance_share": 0.5,
        "zero_variance_all_success": pytest.approx(0.3),
        "zero_variance_all_fail": pytest.approx(0.1),
        "zero_variance_all_equal": pytest.approx(0.1),
    }
    assert all(metric_named(name) for name in rollout_metrics(counts))


def test_unknown_metrics_are_left_out():
    assert rollout_metrics(None) == {}
    assert rollout_metrics(RolloutCounts()) == {"rollouts": 0.0, "rollout_groups": 0.0}


def test_counts_are_added_and_unknown_ones_ignored():
    first = RolloutCounts(scored=8, reward_sum=4.0, groups=2, all_fail=1)
    second = RolloutCounts(scored=4, reward_sum=-1.0, groups=3, all_success=1, all_equal=1)
    both = RolloutCounts(scored=12, reward_sum=3.0, groups=5, all_success=1, all_fail=1, all_equal=1)
    assert added(added(None, first), second) == both
    assert added(first, None) == first
    assert added(None, None) is None
