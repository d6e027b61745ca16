"""Plausibility: whether a trajectory's recorded log-probabilities can be those that its tokens were sampled with. Pure.

With d = log π − log π_recorded of a token, π the policy before the step:

    too low    Σ log((1 + e^d) / 2)    over any stretch of the trajectory's tokens, above ``too_low``
    too high   Σ (−d − allowance)      over any stretch of its fresh tokens, above ``too_high``

Too low needs no calibration. Under an honest record the mean of π / π_recorded over what is sampled is 1, whatever π
is: however stale, in whatever precision. So the first sum is the gain, in nats, of somebody who bets half of what they
have on the record being wrong, token by token: e^16 is reached from a given token on with a probability of 1e-7 at most
(Ville's inequality). Too high has no such bound, as a policy may move any way from what it sampled; so it is asked only
of fresh tokens, those of the very version that is trained, where engine and trainer differ by rounding. It also does
less harm: the token's ratio is small. Figures of simulations: DECISIONS.md, 2026-11-22.

Axis legend: N sampled tokens.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.trainer.batches.packing import Floats, Ints


@dataclass(frozen=True, slots=True)
class PlausibilitySettings:
    """When a member is turned away as ``implausible_logprobs`` before the step that would train it."""

    too_low: float | None = 16.0
    """Evidence, in nats, that its tokens were likelier than was recorded; ``None``: not looked at."""
    too_high: float | None = 16.0
    """Nats, beyond the allowance, by which a stretch of its fresh tokens is less likely than was recorded; ``None``:
    not looked at."""
    allowance: float = 1.0
    """Nats a token by which trainer and engine may differ at the same weights."""

    def __post_init__(self) -> None:
        for name in ("too_low", "too_high"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise ValueError(f"plausibility: {name} is {bound}: it must be above 0, or null")
        if not 0 <= self.allowance < math.inf:
            raise ValueError(f"plausibility: allowance is {self.allowance}: it must be at least 0")


class ImplausibleLogprobs(Exception):
    """Members of a batch whose recorded log-probabilities cannot be theirs; nothing was trained."""

    def __init__(self, trajectories: tuple[int, ...]) -> None:
        """``trajectories``: their numbers in the batch, ascending."""
        super().__init__(f"implausible log-probabilities in {len(trajectories)} trajectories")
        self.trajectories = trajectories


def implausible_trajectories(
    before_N: Floats, behaviour_N: Floats, lags_N: Ints, trajectories_N: Ints, settings: PlausibilitySettings
) -> tuple[int, ...]:
    """Numbers of the trajectories whose record is implausible, ascending.

    ``before_N`` (N,) log π before the step, at each token's temperature; ``behaviour_N`` (N,) as recorded;
    ``lags_N`` (N,) how many versions ago the token was sampled; ``trajectories_N`` (N,) its trajectory, whose tokens
    stand one after the other. What is not a number is no evidence:
    a policy that gives NaN is caught as divergence.
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
    """The largest sum of any stretch of ``values``, 0 for none; NaN where one of them is."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return float((sums - np.minimum.accumulate(sums)).max())
