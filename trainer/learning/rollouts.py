"""Metrics over all rollouts of a run, those that the variance filter took included. Pure.

``reward_mean`` is of what is trained: it has no prompt that the policy always solves or never does, and can stand still
while the policy gets better. The training records that a step took tell what became of all rollouts.
"""

from headrace.schemas.rollouts import RolloutCounts


def added(first: RolloutCounts | None, second: RolloutCounts | None) -> RolloutCounts | None:
    """Both together; ``None`` where neither is known."""
    return first.plus(second) if first and second else first or second


def rollout_metrics(counts: RolloutCounts | None) -> dict[str, float]:
    """``rollouts`` and the mean of their rewards, ``rollout_groups`` and the shares of those without variance.

    What there is nothing to take a mean or a share of is left out.
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
