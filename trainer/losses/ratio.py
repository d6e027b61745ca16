"""The importance ratio and PPO's clip, which several losses share."""

import torch

from headrace.trainer.losses.loss import Objective

LOG_RATIO_BOUND = 20.0
"""Larger |log ρ| are clamped to it, so that ratios and their products stay finite."""


def bounded_ratio(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """Returns (N,) exp of log-ratios clamped to ±20; beyond, the gradient is zero."""
    return log_ratio_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def clipped_surrogate(
    ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Objective:
    """Returns (N,) min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A) (PPO, Schulman et al., 2017).

    A token's gradient with respect to log ρ is ρ A, and zero if it is clipped: ρ too large with A > 0, or too small
    with A < 0. With A < 0 a large ρ is bounded only by ``dual_clip``: max(…, c A) (Ye et al., 2020).
    """
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    values_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    clipped_high = (ratio_N > 1 + clip_high) & (advantages_N > 0)
    if dual_clip is not None:
        beyond = (ratio_N > dual_clip) & (advantages_N < 0)
        values_N = torch.where(beyond, dual_clip * advantages_N, values_N)
        clipped_high = clipped_high | beyond
    return Objective(values_N, (ratio_N < 1 - clip_low) & (advantages_N < 0), clipped_high)
