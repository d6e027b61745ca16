"""Metrics of a step under their usual names, as pure functions of arrays.

Axis legend: N sampled tokens. ρ = π / π_behaviour, π the policy before the step.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.trainer.batches.packing import Floats, Ints


def mismatch_metrics(before_N: Floats, behaviour_N: Floats, lags_N: Ints) -> dict[str, float]:
    """Returns the distance of the policy before the step from the behaviour policies.

    ``before_N`` (N,) log π before the step's first update, ``behaviour_N`` (N,) as recorded, ``lags_N`` (N,) versions
    since a token was sampled.
    ``importance_ratio_mean`` and ``_max``; ``effective_sample_size`` (Σρ)² / (N Σρ²), a share of N, warn below 0.3;
    ``kl_k1`` mean of −log ρ and ``kl_k3`` mean of ρ − 1 − log ρ, both estimates of KL(π_behaviour ‖ π) (Schulman
    2020), warn at |k3| > 0.1; ``chi2`` mean of ρ² minus 1, warn above 1. At lag 0 both policies have the same weights,
    so these metrics measure the difference between trainer and engine: ``mismatch_kl`` (k3) and
    ``mismatch_logprob_max``, the largest absolute difference; both are absent if no token has lag 0.
    """
    log_ratio = before_N.astype(np.float64) - behaviour_N
    ratio = _ratio(log_ratio)
    k3 = ratio - 1 - log_ratio
    metrics = {
        "importance_ratio_mean": float(ratio.mean()),
        "importance_ratio_max": float(ratio.max()),
        "effective_sample_size": float(ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())),
        "kl_k1": float(-log_ratio.mean()),
        "kl_k3": float(k3.mean()),
        "chi2": float(np.square(ratio).mean() - 1),
    }
    fresh = lags_N == 0
    if fresh.any():
        metrics["mismatch_kl"] = float(k3[fresh].mean())
        metrics["mismatch_logprob_max"] = float(np.abs(log_ratio[fresh]).max())
    return metrics


def substep_metrics(before_N: Floats, trained_N: Floats) -> dict[str, float]:
    """Returns the distance by which a step's earlier updates moved the policy before each token's own update.

    ``before_N`` (N,) log π before the first update, ``trained_N`` (N,) before the update that trained the token.
    ``substep_kl`` is k3 of the two, ``substep_ratio_max`` the largest of their ratios.
    """
    log_ratio = trained_N.astype(np.float64) - before_N
    ratio = _ratio(log_ratio)
    return {"substep_kl": float((ratio - 1 - log_ratio).mean()), "substep_ratio_max": float(ratio.max())}


def reference_kl(before_N: Floats, behaviour_N: Floats, reference_N: Floats) -> dict[str, float]:
    """Returns ``kl_reference``: KL(π ‖ π_ref) of the policy before the step, in nats per token.

    The mean of k1 = log π − log π_ref over π's own samples is the divergence (Schulman 2020). These tokens were sampled
    by behaviour policies, so each is weighted by ρ = π / π_behaviour; with π_behaviour as reference too, it is ρ log ρ.
    """
    before = before_N.astype(np.float64)
    return {"kl_reference": float((_ratio(before - behaviour_N) * (before - reference_N)).mean())}


def _ratio(log_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    # Ratios are capped at e^50, so that their squares stay finite.
    ratio: NDArray[np.float64] = np.exp(np.minimum(log_ratio, 50.0))
    return ratio


_AGES = {"unknown": -1, "0": 0, "1": 1, "2": 2, "3_4": 4, "5_8": 8, "9_up": None}
"""Buckets of ages, in versions: name → oldest. Negative ages (of future versions) count as unknown."""


def counts_by_age(name: str, ages: Sequence[int] | Ints) -> dict[str, float]:
    """Returns ``name_age_0`` … ``name_age_9_up``: how many of ``ages`` (versions) are in each bucket."""
    oldest = [age for age in _AGES.values() if age is not None]
    counts = np.bincount(np.searchsorted(oldest, np.asarray(ages, np.int64)), minlength=len(_AGES))
    return {f"{name}_age_{bucket}": float(count) for bucket, count in zip(_AGES, counts, strict=True)}


def staleness_metrics(lags_N: Ints) -> dict[str, float]:
    """Returns versions between sampling and training, over tokens; ``staleness_zero`` is the share of fresh ones."""
    p50, p95 = np.percentile(lags_N, (50, 95))
    return {
        "staleness_p50": float(p50),
        "staleness_p95": float(p95),
        "staleness_max": float(lags_N.max()),
        "staleness_zero": float((lags_N == 0).mean()),
        **counts_by_age("tokens", lags_N),
    }
