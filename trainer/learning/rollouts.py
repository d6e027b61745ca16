"""Metrics over all rollouts of a run, including those that the variance filter removed. Pure.

``reward_mean`` covers only trained trajectories: it excludes tasks that the policy always or never solves, and may
stagnate while the policy improves. The training records that a step read report the fates of all rollouts.
"""

from headrace.schemas.rollouts import RolloutCounts


def added(first: RolloutCounts | None, second: RolloutCounts | None) -> RolloutCounts | None:
    """Returns the sum of both; ``None`` if neither is known."""
    return first.plus(second) if first and second else first or second


def rollout_metrics(counts: RolloutCounts | None) -> dict[str, float]:
    """Returns ``rollouts`` and their mean reward, ``rollout_groups`` and the shares of those without variance.

    A mean or share of nothing is left out.
    """
    if counts is None:
        return {}
    metrics = {"rollouts": float(counts.scored), "rollout_groups": float(counts.groups)}
    if counts.scored:
        metrics["rollout_reward_mean"] = counts.reward_sum / counts.scored
    if counts.groups:
        kinds = {"all_success": counts.all_success, "all_fail": counts.all_fail, "all_equal": counts.all_equal}
        metrics["zero_variance_share"] = sum(kinds.values()) / counts.groups
        metrics |= {f"zero_variance_{kind}": number / counts.groups for kind, number in kinds.items()}
    return metrics
