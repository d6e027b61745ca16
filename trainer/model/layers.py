"""The decoder layers of a model: where a pass trades time for memory, and what is worth compiling."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """How layers are computed. Neither setting changes what is learnt; compiled kernels round otherwise."""

    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the layer again. At 57 M parameters and 2,048
    tokens a pass kept 43 MiB instead of 806, for 1.2 times the time."""
    compile: bool = False
    """Compile the layers with ``torch.compile``, around their attention. On a CPU the miniature ran 1.2 times as fast
    and a model of 60 M parameters no faster, after half a minute and more of compiling: off unless measured."""


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of ``model`` in their order; raises ``ValueError`` where it does not say which they are."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # seconds, which reading settings need not take

    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} does not say which modules are its layers")
    return layers


def prepare_layers(model: nn.Module, settings: LayerSettings) -> None:
    """Have the layers of ``model`` computed as ``settings`` ask; names and parameters stay as they are."""
    if not (settings.compile or settings.activation_checkpointing):
        return
    if settings.compile:
        from headrace.trainer.model import attention

        attention.register(around_compiled=True)
    for layer in decoder_layers(model):
        if settings.compile:
            # Passes differ in length, and lengths should not be compiled anew each.
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if settings.activation_checkpointing:
            # There is no dropout, so no random state has to come back. What is compiled is computed again compiled.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
