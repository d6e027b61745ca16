"""Baselines, which are subtracted from rewards to get advantages. Floats in, floats out.

Axis n: the scored members of one group. No baseline divides by a standard deviation (Kimi K2.5, Dr. GRPO): that would
weigh an almost solved task as much as an undecided one. ``b_i`` must not depend on ``r_i`` itself, or the gradient is
biased; only the mean does, by the factor (n−1)/n, which leave-one-out avoids. The whole formula of the advantage is in
``trainer/batches/advantages.py``.
"""

import statistics
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Self

import msgspec


class Baseline(StrEnum):
    """Baseline of a group."""

    MEAN = "mean"
    LEAVE_ONE_OUT = "leave_one_out"
    RUNNING = "running"
    THRESHOLD = "threshold"


def mean(rewards: Sequence[float]) -> list[float]:
    """Returns (n,) b_i = (1/n) Σ_j r_j: the group's mean (GRPO). Advantages sum to 0. ``rewards`` must not be empty."""
    return [sum(rewards) / len(rewards)] * len(rewards)


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Returns (n,) b_i = (1/(n−1)) Σ_{j≠i} r_j: the mean of the others (RLOO, Ahmadian et al. 2024).

    The advantage is n/(n−1) times that of the mean. For a single member the baseline is its own reward: no advantage.
    """
    if len(rewards) < 2:
        return list(rewards)
    total = sum(rewards)
    return [(total - reward) / (len(rewards) - 1) for reward in rewards]


def constant(rewards: Sequence[float], value: float) -> list[float]:
    """Returns (n,) b_i = ``value``: a threshold, or a mean of earlier rewards. Equal rewards then yield a gradient."""
    return [value] * len(rewards)


def standard_deviation(rewards: Sequence[float]) -> float | None:
    """Returns the sample standard deviation (n − 1) of the scored members' rewards; ``None`` for fewer than two.

    It is for losses that divide by it (GRPO, in ``trainer/batches/advantages.py``); no baseline here does.
    """
    return _standard_deviation(tuple(rewards)) if len(rewards) > 1 else None


@lru_cache(maxsize=4096)
def _standard_deviation(rewards: tuple[float, ...]) -> float:
    """Cached: it is exact, by fractions, and takes 20 µs; many groups have the same few outcomes."""
    return statistics.stdev(rewards)


class RunningMean(msgspec.Struct, frozen=True, tag_field="kind", tag="running"):
    """The mean of a cohort's rewards so far: a baseline for prompts with a single response.

    s ← d·s + r and w ← d·w + 1, from 0; the mean is s/w, unbiased from the first reward on. d = ½^(1/half-life).
    """

    cohort: tuple[str, ...]
    """Run, reward spec with its version, cohort key and, if there is one, tenant."""
    total: float = 0.0
    """s: weighted sum of rewards, in which older ones weigh less."""
    weight: float = 0.0
    """w: sum of the weights."""
    count: int = 0
    """Number of rewards so far."""

    def value(self, warmup: int) -> float | None:
        """Returns the mean; ``None`` before ``warmup`` rewards."""
        return self.total / self.weight if self.count >= max(1, warmup) else None

    def after(self, reward: float, half_life: float | None) -> Self:
        """Returns the mean including ``reward``. ``half_life``: rewards after which one weighs half; ``None``: equal
        weights.
        """
        decay = 1.0 if half_life is None else 0.5 ** (1 / half_life)
        return type(self)(self.cohort, decay * self.total + reward, decay * self.weight + 1, self.count + 1)
