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
    """Compile the layers with ``torch.compile``; on a CPU around their attention. There the miniature ran 1.2 times as
    fast and a model of 60 M parameters no faster, after half a minute and more of compiling: off unless measured."""
    flash_attention: str = ""
    """On a GPU, the flash kernels to use instead of torch's own (FlashAttention 2): ``FA3`` on Hopper with the package
    ``flash-attn-3``. Not measured yet."""
    liger: bool = False
    """On a GPU, compute norms, rotary positions and gated activations with Liger's kernels: the package
    ``liger-kernel``. Not measured yet."""


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of ``model`` in their order; raises ``ValueError`` where it does not say which they are."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # seconds, which reading settings need not take

    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} does not say which modules are its layers")
    return layers


def prepare_layers(model: nn.Module, settings: LayerSettings) -> None:
    """Have the layers of ``model`` computed as ``settings`` ask; names and parameters stay as they are.

    Raises ``ValueError`` naming a setting that cannot be followed here.
    """
    if settings == LayerSettings():
        return
    from headrace.trainer.model import attention

    device = next(model.parameters()).device
    if settings.flash_attention:
        attention.choose_flash_attention(settings.flash_attention, device)
    if settings.liger:
        _use_liger(model, device)
    if settings.compile:
        # Weights that are trained are float32 also where passes compute in 16 bits, so the device decides alone.
        attention.register(around_compiled=device.type != "cuda")
    for layer in decoder_layers(model):
        if settings.compile:
            # Passes differ in length, and lengths should not be compiled anew each.
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if settings.activation_checkpointing:
            # There is no dropout, so no random state has to come back. What is compiled is computed again compiled.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def _use_liger(model: nn.Module, device: torch.device) -> None:
    """Patch ``model`` with Liger's kernels, the loss and the head's left out: those are ours."""
    if device.type != "cuda":
        raise ValueError(f"layers.liger needs a GPU: leave it off on {device.type}")
    try:
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )
    except ImportError as error:
        raise ValueError("layers.liger needs the package liger-kernel: pip install 'headrace[kernels]'") from error
    model_type = getattr(getattr(model, "config", None), "model_type", "")
    if model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ValueError(f"layers.liger: Liger has no kernels for {model_type!r}; leave it off")
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
