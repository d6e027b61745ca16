"""The divisor of the sum over tokens, computed for a whole update and not for one of its passes.

Axis legend: N sampled tokens of the update.
"""

import torch

from headrace.trainer.losses.settings import Normaliser


def normalise(
    kept_N: torch.Tensor, trajectories_N: torch.Tensor, normaliser: Normaliser, *, constant_length: int
) -> tuple[torch.Tensor, float]:
    """Returns the (N,) float32 weight of each token, and the divisor of their sum; both count only kept tokens.

    ``kept_N`` (N,) bool, ``trajectories_N`` (N,) int64. A trajectory without kept tokens does not count. The divisor is
    a sum over trajectories, so ranks that hold whole trajectories can add theirs; it is 0 if no token is kept.
    """
    trajectories, of_N = torch.unique(trajectories_N, return_inverse=True)
    lengths_M = torch.bincount(of_N[kept_N], minlength=len(trajectories))
    weights_N = kept_N.to(torch.float32)
    counted = int((lengths_M > 0).sum())
    match normaliser:
        case Normaliser.CONSTANT_LENGTH:
            return weights_N, float(counted * constant_length)
        case Normaliser.TOKEN_MEAN:
            return weights_N, float(lengths_M.sum())
        case Normaliser.SEQUENCE_MEAN:
            return weights_N / lengths_M.clamp(min=1)[of_N], float(counted)
