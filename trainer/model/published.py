"""The model that is published: what is trained, with adapters merged and rounded to the type that engines compute in.

    tensors            a state under the names of the model without adapters, for the disk
    log-probabilities  inside ``as_published``: those that engines will give, for canaries

Both merge by the same operation on the same numbers, so a canary has the bits of the model on disk: also in bfloat16,
where adapters beside a weight round otherwise than merged ones, and on any number of ranks.
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
    """Names of what is published: those of the model without adapters."""
    return [plain for name in model.state_dict() if (plain := plain_name(name)) is not None]


@torch.no_grad()
def published_tensors(model: nn.Module, dtype: torch.dtype, *, keep: bool = True) -> dict[str, Tensor]:
    """The model that is published, as a state in the host's memory; tied tensors are one.

    Of a sharded model all ranks call it: a tensor at a time is gathered and merged, and given to the ranks that
    ``keep`` them; the others get nothing.
    """
    adapters = {id(adapter.weight): adapter for adapter in whole_adapters(model)}
    tensors: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if (plain := plain_name(name)) is None:
            continue
        if id(tensor) not in tensors:
            weight = tensor.to(dtype) if isinstance(tensor, nn.Parameter) else tensor  # a buffer stays what it is
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

    With ``rounded`` they are those of the published tensors of that type, and are computed with in float32: exact
    log-probabilities of what engines load, to which the rounding of activations adds nothing. Without, what is computed
    in is the caller's to see to, as ever (``weight_copies``, FSDP).

    A layer's weights are made when it begins and let go when it ends: no second model is held. Of a sharded model all
    ranks enter together, without ``rounded``.
    """
    with torch.no_grad(), contextlib.ExitStack() as inside:
        layers = decoder_layers(model) if rounded or has_adapters(model) else []
        if rounded:
            in_layers = {id(weight) for layer in layers for weight in layer.parameters()}
            outside = [weight for weight in model.parameters() if id(weight) not in in_layers]
            inside.enter_context(with_weights(model, {id(weight): _exact(weight, rounded) for weight in outside}))
        for layer in layers:
            adapters, merged = whole_adapters(layer), inside.enter_context(contextlib.ExitStack())
            # Between FSDP's own hooks: after it has gathered the layer's weights, before it lets them go.
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
