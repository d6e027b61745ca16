"""The loss of Kimi K2.5 (Moonshot, 2026): a mask on the log-ratio whatever the advantage's sign, and a squared penalty.

    max 1/N Σ_N clip(ρ, e^α, e^β) A − τ (log ρ)²,   A = r − mean(r)

PPO's clip leaves the ratio unbounded on one side, depending on the advantage's sign; here a token whose log-ratio
leaves [α, β] has no gradient at all, not even of the penalty. α, β and τ were not published; the defaults are our
choice: a factor of two in both directions, and a penalty that matters only near these bounds.
"""

import math

from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.settings import Normaliser


def objective(
    tokens: LossTokens,
    *,
    log_ratio_min: float = -math.log(2),
    log_ratio_max: float = math.log(2),
    log_ratio_penalty: float = 0.01,
) -> Objective:
    """(N,) tokens → (N,) exp(c) A − τ c², c = clip(log ρ, α, β).

    A token's gradient with respect to its log-probability is ρ A − 2 τ log ρ inside [α, β], zero outside.
    """
    log_ratio_N = tokens.logprobs - tokens.anchor_logprobs
    clipped_N = log_ratio_N.clamp(log_ratio_min, log_ratio_max)
    return Objective(
        values=clipped_N.exp() * tokens.advantages - log_ratio_penalty * clipped_N.square(),
        clipped_low=log_ratio_N < log_ratio_min,
        clipped_high=log_ratio_N > log_ratio_max,
    )


KIMI = Loss(objective, Normaliser.TOKEN_MEAN)
