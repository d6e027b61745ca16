"""CISPO (MiniMax-M1, 2025): the ratio is truncated as a weight, so that no token is ever silenced.

    max Σ sg(min(ρ, ε_max)) A log π / (trajectories · constant length)

sg is the stop-gradient. PPO's clip removes the gradient of tokens whose probability changed much, often the rare ones
that decide an answer; here they keep a bounded gradient. ρ has no lower bound. The paper divides by the number of
tokens and scales by the group's standard deviation; here neither is the default (for Dr. GRPO's reasons), and
``normaliser=token_mean``, ``advantage_scale=group_std`` select them.
"""

import torch

from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.settings import Normaliser


def objective(tokens: LossTokens, *, ratio_max: float = 5.0) -> Objective:
    """(N,) tokens → (N,) sg(min(ρ, ε_max)) A log π. The paper finds results insensitive to ε_max between 4 and 8.

    A token's gradient with respect to its log-probability is min(ρ, ε_max) A, always.
    """
    ratio_N = (tokens.logprobs.detach() - tokens.anchor_logprobs).exp()
    return Objective(
        values=ratio_N.clamp(max=ratio_max) * tokens.advantages * tokens.logprobs,
        clipped_low=torch.zeros_like(ratio_N, dtype=torch.bool),
        clipped_high=ratio_N > ratio_max,
    )


CISPO = Loss(objective, Normaliser.CONSTANT_LENGTH)
