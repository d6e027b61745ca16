"""CISPO (MiniMax-M1, 2025): the ratio is truncated as a weight, so that no token is ever silenced.

    max Σ sg(min(ρ, ε_max)) A log π / (trajectories · constant length)

sg is the stop-gradient. A clip removes the gradient of tokens whose probability moved far, often the rare ones that
decide an answer; here they keep a bounded one. There is no lower bound on ρ.
"""

import torch

from headrace.trainer.losses.settings import LossSettings, TokenCounts


def cispo(
    logprobs_N: torch.Tensor,
    behaviour_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    divisor: float,
    settings: LossSettings,
) -> tuple[torch.Tensor, TokenCounts]:
    """The loss and how many tokens had their weight truncated.

    A token's gradient with respect to its log-probability is −min(ρ, ε_max) A / divisor, always.
    """
    ratio_N = (logprobs_N.detach() - behaviour_logprobs_N).exp()
    objective_N = ratio_N.clamp(max=settings.ratio_max) * advantages_N * logprobs_N
    counts = {
        "clip_fraction_low": torch.zeros((), dtype=torch.int64, device=ratio_N.device),
        "clip_fraction_high": (ratio_N > settings.ratio_max).sum(),
    }
    return -objective_N.sum() / divisor, counts
