"""What a loss is: a function of sampled tokens, and the settings it was published with.

Every loss here is −Σ_N weight · objective / divisor. A loss says what a token's objective is; weights and divisor are
decided for the whole update before its first pass (``normaliser.py``, ``corrections.py``). So it does not matter how an
update is divided into passes or over ranks.

Axis legend: N sampled tokens of one pass. Only tokens that are kept reach a loss, so there is no mask.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.trainer.losses.settings import AdvantageScale, Normaliser


@dataclass(frozen=True, eq=False, slots=True)
class LossTokens:
    """What a loss sees. π is the policy that is trained."""

    logprobs: torch.Tensor
    """(N,) float, log π; the only one with a gradient."""
    anchor_logprobs: torch.Tensor
    """(N,) float, log-probability under the policy that ratios are measured against: π_b, or π_prox where a correction
    or the loss itself weighs the way from π_b to π_prox."""
    behaviour_logprobs: torch.Tensor
    """(N,) float, log π_b: under the policy that sampled, as recorded."""
    advantages: torch.Tensor
    """(N,) float."""
    trajectories: torch.Tensor
    """(N,) int64, number of the token's trajectory."""


@dataclass(frozen=True, eq=False, slots=True)
class Objective:
    """What a loss says of each token."""

    values: torch.Tensor
    """(N,) float, to be maximised; differentiable."""
    clipped_low: torch.Tensor
    """(N,) bool: the ratio was too small, and the loss did something about it."""
    clipped_high: torch.Tensor
    """(N,) bool: the ratio was too large, and the loss did something about it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the registry."""

    objective: Callable[..., Objective]
    """``(tokens, **bounds) -> Objective``; the bounds' defaults are the published ones."""
    normaliser: Normaliser
    """What the sum over tokens is divided by."""
    advantage_scale: AdvantageScale = AdvantageScale.NONE
    """What advantages are divided by."""
    proximal: bool = False
    """Its ratios are measured against π_prox, the policy before the step: one more forward pass."""
    whole_trajectories: bool = False
    """It looks at all tokens of a trajectory at once: they are in one pass, or the loss is made linear first."""
