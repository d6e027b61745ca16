"""The decoder layers of a model: activation checkpointing, compilation and optional kernels."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """How layers are computed. No setting changes what is learnt, but compiled kernels round differently."""

    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the layer again. With 57 M parameters and 2,048
    tokens a pass kept 43 MiB instead of 806, and took 1.2 times as long."""
    compile: bool = False
    """Compile the layers with ``torch.compile``; on a CPU without their attention. There the miniature ran 1.2 times as
    fast and a model of 60 M parameters no faster, after at least half a minute of compiling: measure before use."""
    flash_attention: str = ""
    """On a GPU, the flash kernels to use instead of torch's own (FlashAttention 2): ``FA3`` on Hopper with the package
    ``flash-attn-3``. Not measured yet."""
    liger: bool = False
    """On a GPU, compute norms, rotary positions and gated activations with Liger's kernels: the package
    ``liger-kernel``. Not measured yet."""


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the layers of ``model`` in order; raises ``ValueError`` if the model does not mark them."""
    from transformers.modeling_layers import (
        GradientCheckpointingLayer,
    )  # takes seconds, and reading settings does not need it

    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} does not mark its decoder layers")
    return layers


def prepare_layers(model: nn.Module, settings: LayerSettings) -> None:
    """Apply ``settings`` to the layers of ``model``; names and parameters do not change.

    Raises ``ValueError`` naming a setting that is not supported here.
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
        # Trained weights are float32 even if passes compute in 16 bits, so the device alone decides.
        attention.register(around_compiled=device.type != "cuda")
    for layer in decoder_layers(model):
        if settings.compile:
            # Passes differ in length: dynamic shapes avoid a compilation for each length.
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if settings.activation_checkpointing:
            # There is no dropout, so no random state must be restored. Compiled layers are recomputed compiled.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def _use_liger(model: nn.Module, device: torch.device) -> None:
    """Patch ``model`` with Liger's kernels, except those of the loss and the head, which are implemented here."""
    if device.type != "cuda":
        raise ValueError(f"layers.liger needs a GPU: leave it off on {device.type}")
    try:
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )
    except ImportError as error:
        raise ValueError("layers.liger needs the package liger-kernel: pip install liger-kernel") from error
    model_type = getattr(getattr(model, "config", None), "model_type", "")
    if model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ValueError(f"layers.liger: Liger has no kernels for {model_type!r}; leave it off")
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
