"""Corrections for off-policy tokens: importance weights, and masks for tokens beyond correction.

A policy differs from the behaviour policy because of versions in between (staleness), or because trainer and engine
compute differently (mismatch). The importance weight is w = π_prox / π_b, where π_prox is the trainer's policy before
the step. Truncated importance sampling (Ionides, 2008; for this mismatch Yao et al., 2025) takes min(w, C); masked
importance sampling (IcePop, Ant Ling, 2025) takes w inside [c, C] and masks the token outside. The weight of a
trajectory instead of a token is the geometric mean of its tokens' ratios, or their product, which is unbiased.

Axis legend: N sampled tokens of a batch.
"""

from dataclasses import dataclass

import torch

from headrace.trainer.losses.ratio import bounded_ratio
from headrace.trainer.losses.settings import CorrectionSettings, Importance, Level


@dataclass(frozen=True, eq=False, slots=True)
class Corrected:
    """The corrected weights of a batch's tokens, with metrics."""

    weights: torch.Tensor
    """(N,) float32, factor of a token's objective; 0 exactly for masked tokens."""
    metrics: dict[str, float]
    """``tokens_kept``, ``tokens_kept_share``; ``tokens_masked_stale`` and ``tokens_masked_ratio``, by the first reason
    that applied; with an importance correction ``correction_weight_mean`` and ``correction_truncated``, a share, over
    the kept."""


def correct(
    prox_logprobs_N: torch.Tensor,
    behaviour_logprobs_N: torch.Tensor,
    lags_N: torch.Tensor,
    trajectories_N: torch.Tensor,
    settings: CorrectionSettings,
) -> Corrected:
    """Returns the corrected weights of a batch's tokens.

    ``lags_N`` (N,) int64: versions since a token was sampled. A trajectory's ratio covers its tokens that are fresh
    enough. Without an importance correction ``prox_logprobs_N`` is not used.
    """
    limit = settings.max_token_staleness
    fresh_N = torch.ones_like(lags_N, dtype=torch.bool) if limit is None else lags_N <= limit
    if settings.importance == Importance.NONE:
        weights_N = fresh_N.to(torch.float32)
        return Corrected(weights_N, _counts(fresh_N, fresh_N))
    log_ratio_N = prox_logprobs_N - behaviour_logprobs_N
    ratio_N = bounded_ratio(_at_level(log_ratio_N, fresh_N, trajectories_N, settings.level))
    kept_N = fresh_N
    if settings.importance == Importance.MASK:
        kept_N = fresh_N & (ratio_N >= settings.least) & (ratio_N <= settings.greatest)
    weights_N = ratio_N.clamp(max=settings.greatest) * kept_N
    kept = max(int(kept_N.sum()), 1)
    return Corrected(
        weights_N,
        _counts(fresh_N, kept_N)
        | {
            "correction_weight_mean": float(weights_N.sum()) / kept,
            "correction_truncated": float((kept_N & (ratio_N > settings.greatest)).sum()) / kept,
        },
    )


def _at_level(
    log_ratio_N: torch.Tensor, fresh_N: torch.Tensor, trajectories_N: torch.Tensor, level: Level
) -> torch.Tensor:
    if level == Level.TOKEN:
        return log_ratio_N
    trajectories, of_N = torch.unique(trajectories_N, return_inverse=True)
    sums_M = torch.zeros(len(trajectories), dtype=log_ratio_N.dtype).index_add(0, of_N, log_ratio_N * fresh_N)
    if level == Level.GEOMETRIC_MEAN:
        sums_M = sums_M / torch.bincount(of_N[fresh_N], minlength=len(trajectories)).clamp(min=1)
    return sums_M[of_N]


def _counts(fresh_N: torch.Tensor, kept_N: torch.Tensor) -> dict[str, float]:
    return {
        "tokens_kept": float(kept_N.sum()),
        "tokens_kept_share": float(kept_N.sum()) / len(kept_N),
        "tokens_masked_stale": float((~fresh_N).sum()),
        "tokens_masked_ratio": float((fresh_N & ~kept_N).sum()),
    }
