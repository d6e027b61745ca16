"""Computing in bfloat16 with weights in float32.

A step of 1e-6 is below half a unit in the last place of most bfloat16 weights (1/512 of their size): added to them it
changes nothing, however often. So the weights that are trained are float32, and a pass computes with a copy of them in
bfloat16, which is what engines serve. Gradients come back through the copy and add up in float32; FSDP2's mixed
precision does the same with the shards that it gathers.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from headrace.trainer.model.lora import has_adapters


def weight_copies(model: nn.Module, dtype: torch.dtype) -> dict[int, Tensor]:
    """Copies in ``dtype`` of the weights that have another type, by the parameter's id, connected for gradients."""
    return {id(weight): weight.to(dtype) for weight in model.parameters() if weight.dtype != dtype}


@contextlib.contextmanager
def with_weights(model: nn.Module, copies: Mapping[int, Tensor]) -> Iterator[None]:
    """While inside, ``model`` has ``copies`` (by a parameter's id) in place of its parameters.

    A backward pass that computes activations again belongs inside, with the copies of its forward pass.
    """
    places = [
        (module, name, weight)
        for module in (model.modules() if copies else ())
        for name, weight in module._parameters.items()
        if weight is not None and id(weight) in copies
    ]
    # What is written is what ``torch.func.functional_call`` writes too; that one is over when a backward pass begins.
    table: dict[str, Tensor | None]
    try:
        for module, name, weight in places:
            table = module._parameters  # type: ignore[assignment]
            table[name] = copies[id(weight)]
        yield
    finally:
        for module, name, weight in places:
            module._parameters[name] = weight


def unpublished_weights(model: nn.Module, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """The trained weights that cannot be read back from what is published, by name: a checkpoint must hold them too."""
    adapted = has_adapters(model)
    return {
        name: weight
        for name, weight in model.named_parameters()
        if weight.requires_grad and (adapted or weight.dtype != dtype)
    }
