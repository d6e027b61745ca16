"""The KL penalty: k1 = log π − log π_ref, taken from the advantage and never differentiated (Schulman, 2020).

As a loss, k1 teaches nothing: the expectation of its gradient over the policy's own samples is Σ_a ∇π(a) = 0, and what
is left is noise. In the advantage, detached, the same number is weighed by ∇log π, and its expectation is the gradient
of KL(π ‖ π_ref). That is where Composer 2 has it.

Per token, the penalty is of the token's own distribution; that a token leads to contexts where policies differ more is
not in it, as it would be were k1 summed over the rest of the answer. The sum's variance grows with the length.

The whole formula of the advantage is in ``trainer/batches/advantages.py``.
"""

import torch


def penalised_advantages(
    advantages_N: torch.Tensor, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, coefficient: float
) -> torch.Tensor:
    """(N,) A − β (log π − log π_ref); carries no gradient."""
    return advantages_N - coefficient * (logprobs_N.detach() - reference_logprobs_N)
