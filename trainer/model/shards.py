"""Weights that are sharded over the ranks of a job: this rank's part of one, and the whole of it."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """``tensor``, gathered from all ranks where it is sharded: then all of them call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """What this rank holds of ``tensor``."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
