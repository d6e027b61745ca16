"""Dr. GRPO (Liu et al., 2025): the clipped surrogate of PPO, without the two biases of GRPO.

    max Σ min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A) / (trajectories · constant length),   A = r − mean(r)

GRPO divides by each answer's own length and by the group's standard deviation; here neither is done.
"""

import torch

from headrace.trainer.losses.settings import LossSettings, TokenCounts


def dr_grpo(
    logprobs_N: torch.Tensor,
    behaviour_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    divisor: float,
    settings: LossSettings,
) -> tuple[torch.Tensor, TokenCounts]:
    """The loss and how many tokens the clip silenced: their gradient is zero.

    A token's gradient with respect to its log-probability is −ρ A / divisor while it is not clipped.
    """
    ratio_N = (logprobs_N - behaviour_logprobs_N).exp()
    clipped_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    objective_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    counts = {
        "clip_fraction_low": ((ratio_N < 1 - settings.clip_low) & (advantages_N < 0)).sum(),
        "clip_fraction_high": ((ratio_N > 1 + settings.clip_high) & (advantages_N > 0)).sum(),
    }
    return -objective_N.sum() / divisor, counts
