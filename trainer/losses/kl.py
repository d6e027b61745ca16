"""The KL penalty: k1 = log π − log π_ref, subtracted from the advantage and never differentiated (Schulman, 2020).

k1 is useless as a loss: the expectation of its gradient over the policy's own samples is Σ_a ∇π(a) = 0, so the gradient
is pure noise. In the advantage, detached, k1 is multiplied by ∇log π, and the expectation is the gradient of KL(π ‖
π_ref). Composer 2 does the same.

The penalty of a token covers only its own distribution. Unlike k1 summed over the rest of the answer, it ignores that a
token may lead to contexts in which the policies differ more; but that sum's variance grows with the length.

The whole formula of the advantage, of which this is the last term, is in ``trainer/batches/advantages.py``.
"""

import torch


def penalised_advantages(
    advantages_N: torch.Tensor, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, coefficient: float
) -> torch.Tensor:
    """Returns (N,) A − β (log π − log π_ref), without a gradient; A is (r − b) / (σ + ε) or r − b."""
    return advantages_N - coefficient * (logprobs_N.detach() - reference_logprobs_N)
