"""The policy that is trained: a model on this process, or sharded over all ranks of a job (FSDP2).

Of a sharded model, parameters, gradients and optimiser state are divided over the ranks; a layer's weights are gathered
before it computes and released after it. A loss is divided by the divisor of its whole update, so gradients are summed
over the ranks and not averaged.
"""

import math
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from headrace.trainer.batches.packing import PackedSequences
from headrace.trainer.losses.settings import HintSettings
from headrace.trainer.model.divergence import token_divergence
from headrace.trainer.model.layers import decoder_layers
from headrace.trainer.model.load import attention_crossover
from headrace.trainer.model.logprobs import TokenLogprobs, target_hidden, token_logprobs
from headrace.trainer.model.precision import weight_copies, with_weights
from headrace.trainer.parallel.ranks import Ranks
from headrace.trainer.parallel.settings import ParallelSettings


class TrainerPolicy(Protocol):
    """A model that computes log-probabilities of packed sequences. All ranks call each method together."""

    crossover: float
    """Length in tokens at which attention costs as much as the linear layers: for dividing work among ranks."""

    def logprobs(self, packed: PackedSequences) -> TokenLogprobs:
        """Returns the log-probabilities of the targets of ``packed``: see :func:`token_logprobs`."""

    def divergence(self, plain: PackedSequences, hinted: PackedSequences, settings: HintSettings) -> Tensor:
        """Returns the (N,) divergence at the targets of ``plain`` from this policy on ``hinted``, whose N targets are
        the same tokens in other contexts; a gradient flows through ``plain`` alone."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of ``loss``; ``last``: it is the last before the gradients are used."""


class WholePolicy:
    """A model that this process holds completely."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        """The policy of ``model``, which computes in ``dtype``."""
        self.crossover = math.inf  # no work is divided
        self._model = model
        self._dtype = dtype
        self._copies: dict[int, Tensor] = {}

    def logprobs(self, packed: PackedSequences) -> TokenLogprobs:
        """As in :class:`TrainerPolicy`."""
        copies = weight_copies(self._model, self._dtype)
        if torch.is_grad_enabled():
            self._copies = copies  # a backward pass that recomputes activations needs the same copies
        with with_weights(self._model, copies):
            return token_logprobs(self._model, packed)

    def divergence(self, plain: PackedSequences, hinted: PackedSequences, settings: HintSettings) -> Tensor:
        """As in :class:`TrainerPolicy`."""
        copies = self._copies = weight_copies(self._model, self._dtype)
        with with_weights(self._model, copies):
            with torch.no_grad():
                teacher_NH = target_hidden(self._model, hinted)
            return token_divergence(
                self._model, plain, teacher_NH, direction=settings.direction, temperature=settings.temperature
            )

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """As in :class:`TrainerPolicy`."""
        with with_weights(self._model, self._copies):
            loss.backward()  # type: ignore[no-untyped-call]
        self._copies = {}


class ShardedPolicy:
    """A model that is sharded over the ranks (FSDP2)."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, ranks: Ranks, *, reduce_every_pass: bool) -> None:
        """Shard ``model`` in place: its parameters become ``DTensor`` under the same names.

        Layers are gathered in ``dtype`` and compute in it; gradients are summed in float32. ``reduce_every_pass`` as in
        ``ParallelSettings``. Raises ``ValueError`` if the model does not mark its layers.
        """
        self.crossover = attention_crossover(model)
        mesh = init_device_mesh(torch.device(ranks.device).type, (ranks.count,))
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layer in decoder_layers(model):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        root = _Called(model)
        self._root: Any = fully_shard(root, mesh=mesh, mp_policy=precision)
        self._dtype = dtype
        self._reduce_every_pass = reduce_every_pass
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply in a sum

    def logprobs(self, packed: PackedSequences) -> TokenLogprobs:
        """As in :class:`TrainerPolicy`."""
        result: TokenLogprobs = self._root(packed)
        if not torch.is_grad_enabled():
            self._root.reshard()  # no backward pass follows, which would: the next step must not reuse these weights
        return result

    def divergence(self, plain: PackedSequences, hinted: PackedSequences, settings: HintSettings) -> Tensor:
        """As in :class:`TrainerPolicy`."""
        with torch.no_grad():
            teacher_NH = self._root(hinted, settings)
        self._root.reshard()  # no backward pass follows
        divergence_N: Tensor = self._root(plain, settings, teacher_NH)
        return divergence_N

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """As in :class:`TrainerPolicy`."""
        self._root.set_requires_gradient_sync(self._reduce_every_pass or last)
        loss.backward()  # type: ignore[no-untyped-call]


class _Called(nn.Module):
    """The root module of FSDP: its ``forward`` includes the head, which the model's own ``forward`` does not."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, packed: PackedSequences, hints: HintSettings | None = None, teacher_NH: Tensor | None = None
    ) -> TokenLogprobs | Tensor:
        """Returns log-probabilities; with ``hints`` the teacher's hidden states or, given these, the divergence."""
        if hints is None:
            return token_logprobs(self.model, packed)
        if teacher_NH is None:
            return target_hidden(self.model, packed)
        return token_divergence(
            self.model, packed, teacher_NH, direction=hints.direction, temperature=hints.temperature
        )


def open_policy(model: PreTrainedModel, dtype: torch.dtype, ranks: Ranks, settings: ParallelSettings) -> TrainerPolicy:
    """Returns the policy of ``model``, which computes in ``dtype``.

    The model is sharded in place if there are several ranks, or if ``settings.shard_alone`` is set: then a process
    without a group creates one of its own.
    """
    if ranks.count == 1:
        if not settings.shard_alone:
            return WholePolicy(model, dtype)
        device = next(model.parameters()).device
        ranks = replace(ranks, device=str(device))
        if not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return ShardedPolicy(model, dtype, ranks, reduce_every_pass=settings.reduce_every_pass)
