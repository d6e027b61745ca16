"""What every loss has in common: its settings, and the form of its function.

Axis legend: N sampled tokens. Only sampled tokens reach a loss, so there is no mask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Bounds on the importance ratio ρ = π / π_behaviour."""

    clip_low: float = 0.2
    """ε below 1, for losses that clip."""
    clip_high: float = 0.2
    """ε above 1, for losses that clip."""
    ratio_max: float = 5.0
    """ε_max: cap of the ratio, for losses that truncate. Published as insensitive between 4 and 8."""


TokenCounts: TypeAlias = dict[str, torch.Tensor]
"""Scalars that are counts over the tokens given: added over the passes of a batch, then divided by its tokens."""

Loss: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, float, LossSettings], tuple[torch.Tensor, TokenCounts]
]
"""``(logprobs_N, behaviour_logprobs_N, advantages_N, divisor, settings) -> (loss, counts)``.

The loss is −Σ_N objective / divisor. The divisor is the same for every pass of a batch and does not depend on how long
its answers are: trajectories in the batch × a constant length. Dividing by the tokens there are would make a token of
a long answer weigh less than one of a short answer, and so reward length where the advantage is negative.
"""
