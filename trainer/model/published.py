"""The published model: the trained one with adapters merged, rounded to the type in which engines compute.

    tensors            a state dict with the names of the model without adapters, for the disk
    log-probabilities  inside ``as_published``: those that engines will compute, for canaries

Both merge by the same operation on the same numbers, so canaries match the model on disk bit by bit: also in bfloat16,
where separate adapters round differently from merged ones, and on any number of ranks.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from headrace.trainer.model.layers import decoder_layers
from headrace.trainer.model.lora import Adapter, has_adapters, plain_name, whole_adapters
from headrace.trainer.model.precision import with_weights
from headrace.trainer.model.shards import whole_tensor


def published_names(model: nn.Module) -> list[str]:
    """Returns the names of the published tensors: those of the model without adapters."""
    return [plain for name in model.state_dict() if (plain := plain_name(name)) is not None]


@torch.no_grad()
def published_tensors(model: nn.Module, dtype: torch.dtype, *, keep: bool = True) -> dict[str, Tensor]:
    """Returns the published model as a state dict in the host's memory; tied tensors are stored once.

    All ranks of a sharded model call it: tensors are gathered and merged one at a time; ranks without ``keep`` get an
    empty dict.
    """
    adapters = {id(adapter.weight): adapter for adapter in whole_adapters(model)}
    tensors: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if (plain := plain_name(name)) is None:
            continue
        if id(tensor) not in tensors:
            weight = tensor.to(dtype) if isinstance(tensor, nn.Parameter) else tensor  # buffers keep their type
            whole, adapter = whole_tensor(weight.detach()), adapters.get(id(tensor))
            if keep:
                tensors[id(tensor)] = (adapter.merged(whole) if adapter else whole).cpu()
            else:
                tensors[id(tensor)] = whole.new_empty(0)
        state[plain] = tensors[id(tensor)]
    return state if keep else {}


@contextlib.contextmanager
def as_published(model: nn.Module, rounded: torch.dtype | None = None) -> Iterator[None]:
    """While inside, ``model`` computes with merged weights, without gradients.

    With ``rounded`` the weights are rounded to that type, as published, and computed with in float32: log-probabilities
    of the weights that engines load, without rounded activations. Without it the caller chooses the type of the pass
    (``weight_copies``, FSDP).

    A layer's weights are made when it begins and released when it ends, so no second model is held. All ranks of a
    sharded model enter together, without ``rounded``.
    """
    with torch.no_grad(), contextlib.ExitStack() as inside:
        layers = decoder_layers(model) if rounded or has_adapters(model) else []
        if rounded:
            in_layers = {id(weight) for layer in layers for weight in layer.parameters()}
            outside = [weight for weight in model.parameters() if id(weight) not in in_layers]
            inside.enter_context(with_weights(model, {id(weight): _exact(weight, rounded) for weight in outside}))
        for layer in layers:
            adapters, merged = whole_adapters(layer), inside.enter_context(contextlib.ExitStack())
            # Between FSDP's own hooks: after it has gathered the layer's weights, before it releases them.
            inside.callback(layer.register_forward_pre_hook(partial(_merge, adapters, merged, rounded)).remove)
            inside.callback(layer.register_forward_hook(partial(_release, merged), prepend=True).remove)
        yield


def _exact(weight: Tensor, rounded: torch.dtype) -> Tensor:
    return weight.to(rounded).float()


def _merge(
    adapters: Sequence[Adapter],
    merged: contextlib.ExitStack,
    rounded: torch.dtype | None,
    layer: nn.Module,
    _: object,
) -> None:
    copies = {id(weight): _exact(weight, rounded) for weight in layer.parameters()} if rounded else {}
    for adapter in adapters:
        whole = adapter.merged(adapter.weight)
        copies[id(adapter.weight)] = _exact(whole, rounded) if rounded else whole
        copies[id(adapter.up)] = torch.zeros_like(adapter.up)
    merged.enter_context(with_weights(layer, copies))


def _release(merged: contextlib.ExitStack, *_: object) -> None:
    merged.close()
