"""Plausibility: whether a trajectory's tokens can have been sampled with the recorded log-probabilities. Pure.

With d = log π − log π_recorded of a token, where π is the policy before the step:

    too low    Σ log((1 + e^d) / 2)    over any stretch of the trajectory's tokens, above ``too_low``
    too high   Σ (−d − allowance)      over any stretch of its fresh tokens, above ``too_high``

The first test needs no calibration. If the record is correct, the expectation of π / π_recorded over sampled tokens is
1, whatever π is: however stale, in any precision. So the first sum is the gain, in nats, of a bettor who stakes half of
the capital on the record being wrong, token by token: starting at a given token, the capital ever grows by e^16 with a
probability of at most e^-16, about 1.1e-7 (Ville's inequality). The second test has no such bound, because a policy may
move arbitrarily far from its samples; it is applied only to fresh tokens, those of the version that is trained, for
which engine and trainer differ by rounding. Log-probabilities that are too high also do less harm: the token's ratio is
small. Figures of simulations: DECISIONS.md, "Plausibility bounds on recorded log-probabilities".

Axis legend: N sampled tokens.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.trainer.batches.packing import Floats, Ints


@dataclass(frozen=True, slots=True)
class PlausibilitySettings:
    """When a member is rejected as ``implausible_logprobs`` before the step that would train it."""

    too_low: float | None = 16.0
    """Evidence, in nats, that its tokens were likelier than recorded; ``None``: not checked."""
    too_high: float | None = 16.0
    """Nats, beyond the allowance, by which fresh tokens are less likely than recorded; ``None``: not checked."""
    allowance: float = 1.0
    """Nats per token by which trainer and engine may differ at the same weights."""

    def __post_init__(self) -> None:
        for name in ("too_low", "too_high"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise ValueError(f"plausibility: {name} is {bound}: it must be above 0, or null")
        if not 0 <= self.allowance < math.inf:
            raise ValueError(f"plausibility: allowance is {self.allowance}: it must be at least 0")


class ImplausibleLogprobs(Exception):
    """Members of a batch have implausible recorded log-probabilities; nothing was trained."""

    def __init__(self, trajectories: tuple[int, ...]) -> None:
        """``trajectories``: their numbers in the batch, ascending."""
        super().__init__(f"implausible log-probabilities in {len(trajectories)} trajectories")
        self.trajectories = trajectories


def implausible_trajectories(
    before_N: Floats, behaviour_N: Floats, lags_N: Ints, trajectories_N: Ints, settings: PlausibilitySettings
) -> tuple[int, ...]:
    """Returns the numbers of the trajectories whose record is implausible, ascending.

    ``before_N`` (N,) log π before the step, at each token's temperature; ``behaviour_N`` (N,) as recorded;
    ``lags_N`` (N,) versions since the token was sampled; ``trajectories_N`` (N,) its trajectory, whose tokens are
    contiguous. NaN is no evidence: a policy that gives NaN is detected as divergence.
    """
    log_ratio = before_N.astype(np.float64) - behaviour_N
    with np.errstate(invalid="ignore"):
        gain = np.logaddexp(0.0, log_ratio) - math.log(2)
    excess = -log_ratio - settings.allowance
    found = []
    for number in np.unique(trajectories_N):
        of = trajectories_N == number
        low = settings.too_low is not None and _largest_sum(gain[of]) > settings.too_low
        high = settings.too_high is not None and _largest_sum(excess[of & (lags_N == 0)]) > settings.too_high
        if low or high:
            found.append(int(number))
    return tuple(found)


def _largest_sum(values: NDArray[np.float64]) -> float:
    """Returns the largest sum of any contiguous stretch of ``values``, at least 0; NaN if a value is NaN."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return float((sums - np.minimum.accumulate(sums)).max())
