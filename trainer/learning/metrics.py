"""Metrics of a step under the names the field gives them, as pure functions of arrays.

Axis legend: N sampled tokens. ρ = π / π_behaviour, π the policy before the step.
"""

from collections.abc import Sequence

import numpy as np

from headrace.trainer.batches.packing import Floats, Ints


def mismatch_metrics(logprobs_N: Floats, behaviour_logprobs_N: Floats, lags_N: Ints) -> dict[str, float]:
    """How far the policy that is trained is from those that sampled; ``lags_N`` is how many versions ago they did.

    ``importance_ratio_mean`` and ``_max``; ``effective_sample_size`` (Σρ)² / (N Σρ²), a share of N, warn below 0.3;
    ``kl_k1`` mean of −log ρ and ``kl_k3`` mean of ρ − 1 − log ρ, both estimates of KL(π_behaviour ‖ π) (Schulman
    2020), warn at |k3| > 0.1; ``chi2`` mean of ρ² minus 1, warn above 1. At lag 0 both policies are the same weights,
    so what is left is the difference between trainer and engine: ``mismatch_kl`` (k3) and
    ``mismatch_logprob_max``, the largest absolute difference; both are left out where no token has lag 0.
    """
    log_ratio = logprobs_N.astype(np.float64) - behaviour_logprobs_N
    # A ratio past e^50 says no more than e^50 does, and its square still is a number.
    ratio = np.exp(np.minimum(log_ratio, 50.0))
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


_AGES = {"unknown": -1, "0": 0, "1": 1, "2": 2, "3_4": 4, "5_8": 8, "9_up": None}
"""Buckets of ages, in versions: name → oldest. What was sampled by a version yet to come is of unknown age."""


def counts_by_age(name: str, ages: Sequence[int] | Ints) -> dict[str, float]:
    """``name_age_0`` … ``name_age_9_up``: how many of ``ages`` (versions) fall into each bucket, 0 where none does."""
    oldest = [age for age in _AGES.values() if age is not None]
    counts = np.bincount(np.searchsorted(oldest, np.asarray(ages, np.int64)), minlength=len(_AGES))
    return {f"{name}_age_{bucket}": float(count) for bucket, count in zip(_AGES, counts, strict=True)}


def staleness_metrics(lags_N: Ints) -> dict[str, float]:
    """Versions between sampling and training, over tokens; ``staleness_zero`` is the share of fresh ones."""
    p50, p95 = np.percentile(lags_N, (50, 95))
    return {
        "staleness_p50": float(p50),
        "staleness_p95": float(p95),
        "staleness_max": float(lags_N.max()),
        "staleness_zero": float((lags_N == 0).mean()),
        **counts_by_age("tokens", lags_N),
    }
