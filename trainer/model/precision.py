"""Mixed precision: passes in bfloat16 with trained weights in float32.

A step of 1e-6 is below half a unit in the last place of most bfloat16 weights (1/512 of their size), so adding it would
never change them. Therefore the trained weights are float32, and a pass computes with a bfloat16 copy, which is also
what engines serve. Gradients flow back through the copy and are accumulated in float32; FSDP2's mixed precision does
the same with the shards that it gathers.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from headrace.trainer.model.lora import has_adapters


def weight_copies(model: nn.Module, dtype: torch.dtype) -> dict[int, Tensor]:
    """Returns differentiable copies in ``dtype`` of the weights of another type, by the parameter's id."""
    return {id(weight): weight.to(dtype) for weight in model.parameters() if weight.dtype != dtype}


@contextlib.contextmanager
def with_weights(model: nn.Module, copies: Mapping[int, Tensor]) -> Iterator[None]:
    """While inside, ``model`` uses ``copies`` (by a parameter's id) instead of its parameters.

    A backward pass that recomputes activations must run inside, with the copies of its forward pass.
    """
    places = [
        (module, name, weight)
        for module in (model.modules() if copies else ())
        for name, weight in module._parameters.items()
        if weight is not None and id(weight) in copies
    ]
    # ``torch.func.functional_call`` writes the same, but ends before the backward pass begins.
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
    """Returns the trained weights that the published model does not hold, by name: a checkpoint must hold them."""
    adapted = has_adapters(model)
    return {
        name: weight
        for name, weight in model.named_parameters()
        if weight.requires_grad and (adapted or weight.dtype != dtype)
    }
