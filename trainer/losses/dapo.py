"""DAPO (Yu et al., 2025): a clip that is wider above than below, and the mean over all tokens of the batch.

    max 1/N Σ_N min(ρ A, clip(ρ, 1 − 0.2, 1 + 0.28) A),   A = (r − mean(r)) / std(r)

The wider upper bound lets rare tokens grow, which keeps the entropy up. The paper's other parts are elsewhere: the
group processor drops groups without variance, and a reward component gives the overlong penalty.
"""

from headrace.trainer.losses.grpo import objective as clipped
from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.settings import AdvantageScale, Normaliser


def objective(
    tokens: LossTokens, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = None
) -> Objective:
    """(N,) tokens → (N,) min(ρ A, clip(ρ) A)."""
    return clipped(tokens, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


DAPO = Loss(objective, Normaliser.TOKEN_MEAN, AdvantageScale.GROUP_STD)
