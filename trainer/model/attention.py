"""Attention over packed sequences, as an implementation that any Hugging Face causal model can be loaded with.

Only attention depends on the boundaries between sequences; the linear layers do not. It receives a ``Layout`` through
the model's keyword arguments and attends within each sequence only:

- on a GPU, torch's variable-length flash kernel (16-bit types): FlashAttention 2 or, if it is installed and
  ``layers.flash_attention`` selects it, a later one; compiled layers keep it in their graph;
- elsewhere, sequences of similar length are gathered into rectangles for ``scaled_dot_product_attention``. Rows are
  padded at their end only, where causality hides the padding from every real token, so no mask is needed. This was the
  fastest of the variants measured on a CPU: 160 sequences of 100-200 tokens took 0.78 s forward and backward, one
  kernel call per sequence 1.29 s, rectangles padded to the longest 0.84 s, a padded model 1.15-1.27 s.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.attention as nn_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from headrace.trainer.batches.packing import PackedSequences, plan_buckets

NAME = "headrace_packed"
"""The implementation's name: ``from_pretrained(…, attn_implementation=NAME)``."""

FILL = 0.85
"""Smallest length of a sequence as a share of the longest in its rectangle."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Sequences of similar length: ``gather`` (rows · length,) token indices, row by row."""

    gather: torch.Tensor
    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the sequences on the token axis, prepared once per pass for all layers."""

    rectangles: tuple[Rectangle, ...]
    """For kernels that need rectangles."""
    scatter: torch.Tensor
    """(T,) index of each token in the concatenated rectangles."""
    cu_seqlens: torch.Tensor
    """(S + 1,) int32, for kernels that take variable lengths."""
    longest: int
    """Tokens of the longest sequence."""


def make_layout(packed: PackedSequences, device: torch.device) -> Layout:
    """Returns the layout of ``packed`` on ``device``."""
    starts, lengths = packed.cu_seqlens, packed.lengths
    scatter = np.empty(int(starts[-1]), np.int64)
    rectangles, filled = [], 0
    for bucket in plan_buckets(lengths, FILL):
        length = int(lengths[bucket[0]])
        gather = np.zeros((len(bucket), length), np.int64)
        for row, sequence in enumerate(bucket):
            tokens = np.arange(starts[sequence], starts[sequence + 1])
            gather[row, : len(tokens)] = tokens
            scatter[tokens] = filled + row * length + np.arange(len(tokens))
        filled += gather.size
        rectangles.append(Rectangle(torch.from_numpy(gather.reshape(-1)).to(device), len(bucket), length))
    return Layout(
        rectangles=tuple(rectangles),
        scatter=torch.from_numpy(scatter).to(device),
        cu_seqlens=torch.from_numpy(starts.astype(np.int32)).to(device),
        longest=int(lengths.max()),
    )


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each sequence; (1, H, T, D) query, (1, K, T, D) key and value → (1, T, H, D).

    Raises ``ValueError`` without a layout, for a window shorter than a sequence, for a soft cap or sinks.
    """
    if layout is None or query.shape[0] != 1:
        raise ValueError("packed attention needs a batch of one and layout=make_layout(…)")
    if sliding_window is not None and sliding_window < layout.longest:
        raise ValueError(f"sliding windows are not supported: {sliding_window} < {layout.longest} tokens")
    if softcap is not None or s_aux is not None:
        raise ValueError("soft caps and sinks in attention are not supported")
    tokens = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    if takes_variable_lengths(query.device, query.dtype):
        return _variable_length(tokens, layout, scaling)[None], None
    heads = query.shape[1]
    outputs = []
    for rectangle in layout.rectangles:
        q, k, v = (
            x.index_select(0, rectangle.gather).view(rectangle.rows, rectangle.length, *x.shape[1:]).transpose(1, 2)
            for x in tokens
        )
        output = scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=k.shape[1] != heads
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, layout.scatter)[None], None


def takes_variable_lengths(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the variable-length kernel supports ``dtype`` on ``device``."""
    return device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)


def choose_flash_attention(name: str, device: torch.device) -> None:
    """Select the flash kernels ``name`` (``FA3``, ``FA4``) in torch, for the whole process.

    Raises ``ValueError`` if ``device`` is no GPU, torch does not know ``name``, or its package is not installed.
    """
    known = nn_attention.list_flash_attention_impls()
    if name not in known:
        raise ValueError(f"layers.flash_attention is {name!r}: this torch knows {', '.join(sorted(known)) or 'none'}")
    if device.type != "cuda":
        raise ValueError(f"layers.flash_attention {name} needs a GPU: leave it empty on {device.type}")
    try:
        nn_attention.activate_flash_attention_impl(name)
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f"layers.flash_attention {name} cannot be used: {error}. Install its package, or leave it empty"
        ) from error


def _variable_length(tokens: list[torch.Tensor], layout: Layout, scaling: float | None) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x.contiguous() for x in tokens)
    output = varlen_attn(
        q,
        k,
        v,
        layout.cu_seqlens,
        layout.cu_seqlens,
        layout.longest,
        layout.longest,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=k.shape[1] != q.shape[1],
    )
    assert isinstance(output, torch.Tensor)  # a tuple only if the log-sum-exp is requested
    return output


def _no_mask(*_: Any, **__: Any) -> None:
    """The layout separates sequences: a (T, T) mask is never built."""


def register(*, around_compiled: bool = False) -> None:
    """Register the implementation with transformers under :data:`NAME`.

    ``around_compiled`` excludes it from compiled layers, because its rectangles have other shapes in every pass. The
    variable-length kernel is a single operator for the compiler, and needs no exclusion.
    """
    function: Any = packed_attention
    if around_compiled:
        function = torch.compiler.disable(packed_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(NAME, function)
    AttentionMaskInterface.register(NAME, _no_mask)


@contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """While inside, ``model`` takes packed sequences, whatever attention it was created with."""
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
