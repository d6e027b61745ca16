"""Which causal language models can be trained on packed sequences, and which are tested.

Tests verify the architectures in :data:`TESTED`: packed log-probabilities and gradients equal those of the plain model,
and trained weights load in plain transformers. A model for which ``obstacles`` returns reasons cannot be trained. Any
other is checked when it is loaded (``packing_check.py``), and trained with a warning if it passes.
"""

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig

TESTED = frozenset(
    {
        "gemma", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "olmo2", "phi", "phi3", "qwen2", "qwen3",
        "smollm3",
    }
)  # fmt: skip
"""``model_type`` of the architectures that tests verify."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SCALED_LOGITS = ("logit_scale", "logits_scaling")
_SOFT_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")
_ATTENTION = {"full_attention", "sliding_attention"}


class UnsupportedModel(ValueError):
    """A model that cannot be trained; the message names the reason."""


def obstacles(config: PretrainedConfig) -> list[str]:
    """Returns the reasons why the model of ``config`` cannot be trained; none if it may be tried."""
    text: Any = config.get_text_config()
    found = []
    if config.is_encoder_decoder:
        found.append("it is an encoder-decoder: only decoders, trained on what they sampled themselves, are supported")
    elif (known := MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)) is None:
        found.append("transformers knows no causal language model of this type")
    elif not getattr(known, "_supports_attention_backend", False):
        found.append("its attention cannot be replaced by one that separates packed sequences")
    if any((getattr(text, name, None) or 0) > 1 for name in _EXPERTS):
        found.append(
            "it is a mixture of experts: engine and trainer would route tokens differently, which is not recorded"
        )
    found += [
        f"{name} is not supported: attention and head have no soft cap"
        for name in _SOFT_CAPS
        if getattr(text, name, None) is not None
    ]
    found += [
        f"{name} is not supported: the head is a matrix and a bias"
        for name in _SCALED_LOGITS
        if getattr(text, name, None) not in (None, 1, 1.0)
    ]
    if others := set(getattr(text, "layer_types", None) or ()) - _ATTENTION:
        found.append(f"layers of the type {', '.join(sorted(others))} would mix packed sequences")
    if changing := _rope_types(text) & {"dynamic", "longrope"}:
        found.append(f"rotary positions of the type {changing.pop()} change with the longest sequence of a pass")
    return found


def sliding_window(config: PretrainedConfig) -> int | None:
    """Returns the narrowest layer's window in tokens, the current one included; ``None`` without a window."""
    text: Any = config.get_text_config()
    types = getattr(text, "layer_types", None)
    if getattr(text, "use_sliding_window", True) is False or (types is not None and "sliding_attention" not in types):
        return None
    window: int | None = getattr(text, "sliding_window", None)
    return window


def position_limit(config: PretrainedConfig) -> int:
    """Returns the tokens of the longest trainable sequence: the model's positions, or its window if that is less.

    Windows are not implemented, and a sequence that fits into a window is not affected by it.
    """
    positions = int(config.get_text_config().max_position_embeddings)
    window = sliding_window(config)
    return positions if window is None else min(positions, window)


def _rope_types(text: Any) -> set[str]:
    """Returns the types of the rotary embedding: one, or one for each type of layer."""
    rope = getattr(text, "rope_parameters", None) or {}
    each = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return {parameters["rope_type"] for parameters in each if "rope_type" in parameters}
