"""Weights that are sharded over the ranks of a job: this rank's shard of a tensor, and the complete tensor."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """Returns ``tensor``, gathered from all ranks if it is sharded; then all ranks call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """Returns this rank's part of ``tensor``."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
