"""Decoupled PPO (Hilton et al., 2022; AReaL, Fu et al., 2025): the clip is around the policy before the step.

    max 1/N Σ_N sg(π_prox / π_b) min(u A, clip(u, 1 − ε, 1 + ε) A),   u = π / π_prox

A clip around π_b, as in PPO, also cuts off changes by earlier steps since the token was sampled. Around π_prox, the
policy before this step, it bounds this step alone, and π_prox / π_b corrects for the rest without a bound. For a
bounded correction use another loss with the importance correction ``truncate``: it equals this loss with the cap C.
"""

from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.ratio import bounded_ratio, clipped_surrogate
from headrace.trainer.losses.settings import Normaliser


def objective(tokens: LossTokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Objective:
    """(N,) tokens, anchored at π_prox → (N,) sg(π_prox / π_b) min(u A, clip(u) A)."""
    ratio_N = bounded_ratio(tokens.logprobs - tokens.anchor_logprobs)
    weight_N = bounded_ratio(tokens.anchor_logprobs - tokens.behaviour_logprobs)
    clipped = clipped_surrogate(ratio_N, tokens.advantages, clip_low=clip_low, clip_high=clip_high)
    return Objective(weight_N * clipped.values, clipped.clipped_low, clipped.clipped_high)


DECOUPLED = Loss(objective, Normaliser.TOKEN_MEAN, proximal=True)
