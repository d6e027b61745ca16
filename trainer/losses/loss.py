"""The definition of a loss: an objective over sampled tokens, and the settings with which it was published.

Every loss here is −Σ_N weight · objective / divisor. A loss defines a token's objective; weights and divisor are
computed for the whole update before its first pass (``normaliser.py``, ``corrections.py``). Therefore the division of
an update into passes (micro-batches) or over ranks does not change the gradient.

Axis legend: N sampled tokens of one pass. Masked tokens are removed before, so there is no mask.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.trainer.losses.settings import AdvantageScale, Normaliser


@dataclass(frozen=True, eq=False, slots=True)
class LossTokens:
    """The input of a loss. π is the policy that is trained."""

    logprobs: torch.Tensor
    """(N,) float, log π; the only one with a gradient."""
    anchor_logprobs: torch.Tensor
    """(N,) float, log-probability under the policy in the ratio's denominator: π_b, or π_prox if a correction or the
    loss itself applies the weight π_prox / π_b."""
    behaviour_logprobs: torch.Tensor
    """(N,) float, log π_b: under the behaviour policy, as recorded."""
    advantages: torch.Tensor
    """(N,) float."""
    trajectories: torch.Tensor
    """(N,) int64, number of the token's trajectory."""


@dataclass(frozen=True, eq=False, slots=True)
class Objective:
    """The objective of each token."""

    values: torch.Tensor
    """(N,) float, to be maximised; differentiable."""
    clipped_low: torch.Tensor
    """(N,) bool: the ratio was below the lower bound and was clipped or masked."""
    clipped_high: torch.Tensor
    """(N,) bool: the ratio was above the upper bound and was clipped or masked."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the registry."""

    objective: Callable[..., Objective]
    """``(tokens, **bounds) -> Objective``; the bounds' defaults are the published ones."""
    normaliser: Normaliser
    """Divisor of the sum over tokens."""
    advantage_scale: AdvantageScale = AdvantageScale.NONE
    """Divisor of the advantages."""
    proximal: bool = False
    """Whether its ratios are relative to π_prox, the policy before the step: costs one more forward pass."""
    whole_trajectories: bool = False
    """Whether it needs all tokens of a trajectory at once: in one pass, or with the loss made linear first."""
