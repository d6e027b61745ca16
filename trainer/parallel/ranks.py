"""The ranks of a job: processes that train one model together, each on its share of every batch.

A single process is a job of one rank: all collectives then return their argument.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

Values = TypeVar("Values", bound=np.generic)


class RankLost(RuntimeError):
    """Another rank ended or does not answer: the job must be restarted from its checkpoint."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks of its job. Every method is called by all ranks, in the same order."""

    rank: int = 0
    """Number from 0; rank 0 leads: only it uses Kafka and the object store."""
    count: int = 1
    """Ranks of the job."""
    device: str = "cpu"
    """Device of this rank: ``cpu``, ``cuda:3``."""
    timeout_s: float = 600.0
    """Seconds after which a rank that does not answer counts as lost."""
    control: dist.ProcessGroup | None = None
    """Process group for values in the host's memory; the model's tensors use the default group."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, values: NDArray[Values]) -> NDArray[Values]:
        """Returns the element-wise sum over all ranks, bit-identical on each."""
        if self.count == 1:
            return values
        total = torch.from_numpy(values.copy())
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=self.control)
        summed: NDArray[Values] = total.numpy()
        return summed

    def largest(self, value: int) -> int:
        """Returns the largest ``value`` of any rank."""
        if self.count == 1:
            return value
        largest = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.control)
        return int(largest.item())

    def broadcast(self, values: NDArray[Values]) -> NDArray[Values]:
        """Returns rank 0's ``values`` on every rank; the others pass an array of the same shape and type."""
        if self.count == 1:
            return values
        sent = torch.from_numpy(values if self.leads else np.empty_like(values))
        dist.broadcast(sent, src=0, group=self.control)
        received: NDArray[Values] = sent.numpy()
        return received


ALONE = Ranks()
"""One process, no group."""


@contextlib.contextmanager
def join_ranks(
    device: str,
    *,
    local_rank: int = 0,
    timeout_s: float = 600.0,
    meet: str = "env://",
    rank: int = -1,
    count: int = -1,
) -> Iterator[Ranks]:
    """Join a job of several ranks, and leave it at the end.

    ``device`` is ``cpu`` (gloo) or ``cuda`` (nccl, rank ``local_rank`` of this machine on the GPU of that number).
    ``torchrun`` sets the rendezvous address, this process's rank and the number of ranks; without it, they are
    ``meet``, an ``init_method`` of ``torch.distributed``, ``rank`` and ``count``. Raises :class:`RankLost` if the
    others do not join within ``timeout_s``.
    """
    timeout = timedelta(seconds=timeout_s)
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(local_rank)
    try:
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, init_method=meet, timeout=timeout, rank=rank, world_size=count)
        control = dist.new_group(backend="gloo", timeout=timeout)
    except RuntimeError as error:
        raise RankLost(
            f"the other ranks did not join within {timeout_s:.0f} s, or could not be reached: start all of them, and "
            f"check that each can reach the rendezvous address ({str(error).splitlines()[0]})"
        ) from error
    try:
        yield Ranks(
            rank=dist.get_rank(),
            count=dist.get_world_size(),
            device=f"cuda:{local_rank}" if on_gpu else "cpu",
            timeout_s=timeout_s,
            control=control,
        )
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def lost_ranks(timeout_s: float) -> Iterator[None]:
    """Turn torch's errors about a lost rank into :class:`RankLost`."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's errors have no type of their own; each message names the library's source file.
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise RankLost(
                f"another rank ended or did not answer within {timeout_s:.0f} s; see its own log for the reason, then "
                f"restart the job: it resumes from its newest checkpoint ({str(error).splitlines()[0]})"
            ) from error
        raise
