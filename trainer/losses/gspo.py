"""GSPO (Zheng et al., Qwen, 2025): one ratio for a whole answer, because the reward is of the whole answer.

    max 1/M Σ_M min(s A, clip(s, 1 − 3e-4, 1 + 4e-4) A),   s = (π(y|x) / π_b(y|x))^(1/len),   A = (r − mean(r)) / std(r)

y is the trajectory with all its segments: they share one reward, and ratios of single segments could clip one half of a
decision and not the other. Therefore a trajectory's segments are kept in one pass, or, if they are longer than
``max_tokens_per_pass``, the loss is made linear first (``Update.linearised``, one more forward pass). Masked tokens do
not count.
"""

import torch

from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.ratio import bounded_ratio, clipped_surrogate
from headrace.trainer.losses.settings import AdvantageScale, Normaliser


def objective(tokens: LossTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
    """(N,) tokens → (N,) min(s A, clip(s) A), the same for all tokens of a trajectory.

    A token's gradient with respect to its log-probability is, before the clip, s A / len: the mean over a trajectory's
    tokens is its objective.
    """
    log_ratio_N = trajectory_mean(tokens.logprobs - tokens.anchor_logprobs, tokens.trajectories)
    return clipped_surrogate(bounded_ratio(log_ratio_N), tokens.advantages, clip_low=clip_low, clip_high=clip_high)


def trajectory_mean(values_N: torch.Tensor, trajectories_N: torch.Tensor) -> torch.Tensor:
    """Returns the (N,) mean over the tokens of each token's trajectory; differentiable."""
    _, of_N = torch.unique(trajectories_N, return_inverse=True)
    lengths_M = torch.bincount(of_N).to(values_N.dtype)
    sums_M = torch.zeros_like(lengths_M).index_add(0, of_N, values_N)
    return (sums_M / lengths_M)[of_N]


GSPO = Loss(objective, Normaliser.SEQUENCE_MEAN, AdvantageScale.GROUP_STD, whole_trajectories=True)
