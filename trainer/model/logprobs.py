"""The log-probabilities that a model gives to packed tokens.

model = load_model(Path("base"))
result = token_logprobs(model, pack([(ids, mask)]))      # (N,) float32, differentiable
"""

from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from headrace.trainer.batches.packing import PackedSequences
from headrace.trainer.model import attention

MAX_LOGITS = 16 * 1024 * 1024
"""Logits held at once, in elements: 64 MiB in float32. Past it the head runs in chunks, and again in backward."""


class TokenLogprobs(NamedTuple):
    """What a model says of the targets; axis legend: N targets, in the packing's order."""

    logprobs: torch.Tensor
    """(N,) float32 log-probability of each target given what stands before it in its sequence."""
    entropy: torch.Tensor
    """(N,) float32 entropy in nats of the distribution it was drawn from; carries no gradient."""


def token_logprobs(model: PreTrainedModel, packed: PackedSequences, *, max_logits: int = MAX_LOGITS) -> TokenLogprobs:
    """Log-probabilities (temperature 1) of the targets of ``packed``, in float32 from the head on.

    The head runs only where a target is predicted, and in chunks of at most ``max_logits`` logits.
    """
    device = next(model.parameters()).device
    hidden_T = model.base_model(
        input_ids=torch.from_numpy(packed.token_ids)[None].to(device),
        position_ids=torch.from_numpy(packed.position_ids)[None].to(device),
        use_cache=False,
        layout=attention.make_layout(packed, device),
    ).last_hidden_state[0]
    targets_N = torch.from_numpy(packed.targets).to(device)
    hidden_N = hidden_T.index_select(0, targets_N - 1)
    labels_N = torch.from_numpy(packed.token_ids[packed.targets]).to(device)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    rows = max(1, max_logits // head.weight.shape[0])
    if len(labels_N) <= rows:
        return TokenLogprobs(*_head_logprobs(hidden_N, labels_N, head.weight, head.bias))
    chunks = [
        checkpoint(_head_logprobs, hidden, labels, head.weight, head.bias, use_reentrant=False)
        for hidden, labels in zip(torch.split(hidden_N, rows), torch.split(labels_N, rows), strict=True)
    ]
    return TokenLogprobs(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _head_logprobs(
    hidden_N: torch.Tensor, labels_N: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    # Sixteen bits in the head are a known source of mismatch between trainer and engine.
    logits = torch.nn.functional.linear(hidden_N.float(), weight.float(), None if bias is None else bias.float())
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(1, labels_N[:, None])[:, 0] - normaliser
    with torch.no_grad():
        probabilities = (logits - normaliser[:, None]).exp()
        entropy = normaliser - (probabilities * logits).sum(-1)
    return logprobs, entropy
