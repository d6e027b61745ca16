"""The log-probabilities that a model gives to packed tokens.

model = load_model(Path("base"))
result = token_logprobs(model, pack([(ids, mask)]))      # (N,) float32, differentiable
"""

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from headrace.trainer.batches.packing import PackedSequences
from headrace.trainer.model import attention
from headrace.trainer.model.head import head_logprobs

MAX_LOGITS = {"cpu": 16 * 1024 * 1024, "cuda": 256 * 1024 * 1024}
"""Logits in memory at a time, in elements, by type of device: 64 MiB and 1 GiB in float32. Above this number the head
runs in chunks, and again in backward. With a vocabulary of 152 k these are 110 tokens, enough for a CPU, and 1,760,
which a GPU needs for large matrix products."""


class TokenLogprobs(NamedTuple):
    """A model's results for the targets; axis legend: N targets, in the packing's order."""

    logprobs: torch.Tensor
    """(N,) float32 log-probability of each target given its context in the sequence, at its temperature."""
    entropy: torch.Tensor
    """(N,) float32 entropy in nats of the distribution it was drawn from, at its temperature; without gradient."""


def token_logprobs(model: PreTrainedModel, packed: PackedSequences, *, max_logits: int | None = None) -> TokenLogprobs:
    """Returns log-probabilities of the targets of ``packed``, each at its temperature, in float32 from the head on.

    The head runs only at positions that predict a target, in chunks of at most ``max_logits`` logits, by default
    :data:`MAX_LOGITS` of the device.
    """
    hidden_N = target_hidden(model, packed)
    device = hidden_N.device
    if max_logits is None:
        max_logits = most_logits(device)
    labels_N = torch.from_numpy(packed.token_ids[packed.targets]).to(device)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    temperatures_N = None
    if (packed.temperatures != 1).any():
        temperatures_N = torch.from_numpy(packed.temperatures).to(device)
    return TokenLogprobs(
        *head_logprobs(hidden_N, labels_N, head.weight, head.bias, temperatures_N, max_logits=max_logits)
    )


def target_hidden(model: PreTrainedModel, packed: PackedSequences) -> torch.Tensor:
    """Returns the (N, H) hidden states from which the head predicts the targets of ``packed``."""
    device = next(model.parameters()).device
    hidden_T: torch.Tensor = model.base_model(
        input_ids=torch.from_numpy(packed.token_ids)[None].to(device),
        position_ids=torch.from_numpy(packed.position_ids)[None].to(device),
        use_cache=False,
        layout=attention.make_layout(packed, device),
    ).last_hidden_state[0]
    return hidden_T.index_select(0, torch.from_numpy(packed.targets).to(device) - 1)


def most_logits(device: torch.device) -> int:
    """Returns :data:`MAX_LOGITS` of ``device``."""
    return MAX_LOGITS.get(device.type, MAX_LOGITS["cpu"])
