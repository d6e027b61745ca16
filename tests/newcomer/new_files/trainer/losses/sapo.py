"""SAPO (Soft Adaptive Policy Optimization, Gao et al., 2025): a smooth gate instead of a clip.

    max 1/M Σ_M 1/len_m Σ_t f(ρ) A,   f(ρ) = 4/τ · σ(τ (ρ − 1)),   A = (r − mean(r)) / std(r)

τ is larger for negative advantages, whose gradients are less stable. f has the slope 1 at ρ = 1 and falls off on both
sides, so no token is cut off.
"""

import torch

from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.ratio import bounded_ratio
from headrace.trainer.losses.settings import AdvantageScale, Normaliser


def objective(
    tokens: LossTokens, *, temperature_positive: float = 1.0, temperature_negative: float = 1.05
) -> Objective:
    """(N,) tokens → (N,) f(ρ) A."""
    ratio_N = bounded_ratio(tokens.logprobs - tokens.anchor_logprobs)
    positive_N = tokens.advantages > 0
    temperature_N = torch.where(positive_N, temperature_positive, temperature_negative).to(ratio_N.dtype)
    gate_N = 4 / temperature_N * torch.sigmoid(temperature_N * (ratio_N - 1))
    never_N = torch.zeros_like(positive_N)
    return Objective(gate_N * tokens.advantages, never_N, never_N)


SAPO = Loss(objective, Normaliser.SEQUENCE_MEAN, AdvantageScale.GROUP_STD)
