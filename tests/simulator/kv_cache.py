"""A key/value cache of fixed size for many rows, and the attention that reads it: any Hugging Face causal model.

    cache = KeyValueCache(model, rows=128, capacity=256)
    with cached_attention(model):
        logits_BV = feed(model, cache, {0: (17, [4, 9]), 5: (0, [2, 31, 7])})     # row → position, new tokens

Only attention differs from the model's own code. New tokens of all rows lie on one axis, so linear layers have no
padding; a row's keys and values are written at its positions, and masked where a query must not see them.

Axis legend: B rows that are fed, T new tokens of all of them, n most new tokens of a row, L longest context, H heads,
K key-value heads, D head width, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

NAME = "headrace_simulator"
"""Name of the attention implementation."""


class KeyValueCache:
    """Keys and values of every layer, (rows, K, capacity, D) float32 each."""

    def __init__(self, model: PreTrainedModel, *, rows: int, capacity: int) -> None:
        """Allocates the cache; ``capacity`` is the largest context in tokens."""
        config: Any = model.config
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (rows, config.num_key_value_heads, capacity, width)
        self.rows, self.capacity = rows, capacity
        self.layers = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_hidden_layers)]


@dataclass(frozen=True, slots=True)
class _Feed:
    """Where the new tokens of one forward pass go; the model's layers receive it as ``layout``."""

    cache: KeyValueCache
    token_rows: torch.Tensor
    """(T,) row of each new token."""
    token_positions: torch.Tensor
    """(T,) its position in the row's context."""
    fed_rows: torch.Tensor
    """(B,) the rows."""
    gather: torch.Tensor
    """(B, n) index of each row's new tokens on the T axis; padded with its last."""
    mask: torch.Tensor
    """(B, n, L) whether a query sees a position."""
    scatter: torch.Tensor
    """(T,) index of each token in the flattened (B, n)."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    layout: _Feed,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention to the cache; (1, H, T, D) query, (1, K, T, D) key and value → (1, T, H, D)."""
    keys, values = layout.cache.layers[module.layer_idx]  # type: ignore[index]
    keys[layout.token_rows, :, layout.token_positions] = key[0].transpose(0, 1)
    values[layout.token_rows, :, layout.token_positions] = value[0].transpose(0, 1)
    length = layout.mask.shape[-1]
    everyone = len(layout.fed_rows) == layout.cache.rows
    keys, values = keys[:, :, :length], values[:, :, :length]
    k_BKLD, v_BKLD = (keys, values) if everyone else (keys[layout.fed_rows], values[layout.fed_rows])
    heads, width = query.shape[1], query.shape[-1]
    rows, most = layout.gather.shape
    q = query[0].transpose(0, 1)[layout.gather].view(rows, most, k_BKLD.shape[1], -1, width)
    # Heads that share keys are further queries of them.
    q_BKQD = q.permute(0, 2, 3, 1, 4).flatten(2, 3)
    mask_B1QL = layout.mask[:, None].repeat(1, 1, q_BKQD.shape[2] // most, 1)
    out = scaled_dot_product_attention(q_BKQD, k_BKLD, v_BKLD, attn_mask=mask_B1QL, scale=scaling)
    out_BnHD = out.view(rows, k_BKLD.shape[1], -1, most, width).permute(0, 3, 1, 2, 4).reshape(-1, heads, width)
    return out_BnHD[layout.scatter][None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """The feed has the mask."""


@contextmanager
def cached_attention(model: PreTrainedModel) -> Iterator[None]:
    """While inside, ``model`` attends to a :class:`KeyValueCache`."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def feed(model: PreTrainedModel, cache: KeyValueCache, new: Mapping[int, tuple[int, Sequence[int]]]) -> torch.Tensor:
    """Append tokens to rows of the cache; returns (B, V) float32 logits after each row's last, in the order of ``new``.

    ``new``: row → (position of the first token, at least one token). Positions from there on are overwritten, those
    before it must be cached. Raises ``ValueError`` if a context exceeds the cache.
    """
    starts, tokens = [start for start, _ in new.values()], [ids for _, ids in new.values()]
    counts = np.asarray([len(ids) for ids in tokens])
    ends = np.asarray(starts) + counts
    if ends.max() > cache.capacity:
        raise ValueError(f"a context of {ends.max()} tokens in a cache of {cache.capacity}: raise capacity")
    offsets = np.cumsum(counts) - counts
    most, length = int(counts.max()), int(ends.max())
    within_Bn = np.minimum(np.arange(most)[None], counts[:, None] - 1)
    real_Bn = np.arange(most)[None] < counts[:, None]
    positions_Bn = np.asarray(starts)[:, None] + within_Bn
    layout = _Feed(
        cache=cache,
        token_rows=torch.from_numpy(np.repeat(list(new), counts)),
        token_positions=torch.from_numpy(positions_Bn[real_Bn]),
        fed_rows=torch.tensor(list(new)),
        gather=torch.from_numpy(offsets[:, None] + within_Bn),
        mask=torch.from_numpy(np.arange(length)[None, None] <= positions_Bn[..., None]),
        scatter=torch.from_numpy(np.flatnonzero(real_Bn)),
    )
    hidden_TH = model.base_model(
        input_ids=torch.from_numpy(np.concatenate([np.asarray(ids, np.int64) for ids in tokens]))[None],
        position_ids=layout.token_positions[None],
        use_cache=False,
        layout=layout,
    ).last_hidden_state[0]
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits_BV: torch.Tensor = head(hidden_TH[torch.from_numpy(offsets + counts - 1)])
    return logits_BV.float()
