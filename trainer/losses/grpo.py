"""GRPO (DeepSeekMath, Shao et al., 2024): PPO's clip, with the group's mean and standard deviation instead of a critic.

    max 1/M Σ_M 1/len_m Σ_t min(ρ A, clip(ρ, 1 − ε, 1 + ε) A),   A = (r − mean(r)) / std(r)

Because of the mean over an answer's own tokens, a token of a long wrong answer weighs less than one of a short wrong
answer, which dr_grpo and dapo correct. M are the trajectories: an answer of several segments weighs as much as one of a
single segment. The whole formula of A is in ``trainer/batches/advantages.py``.
"""

from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.ratio import bounded_ratio, clipped_surrogate
from headrace.trainer.losses.settings import AdvantageScale, Normaliser


def objective(
    tokens: LossTokens, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> Objective:
    """(N,) tokens → (N,) min(ρ A, clip(ρ) A)."""
    ratio_N = bounded_ratio(tokens.logprobs - tokens.anchor_logprobs)
    return clipped_surrogate(ratio_N, tokens.advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


GRPO = Loss(objective, Normaliser.SEQUENCE_MEAN, AdvantageScale.GROUP_STD)
