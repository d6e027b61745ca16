"""A causal language model from a Hugging Face directory, and the log-probabilities it gives to packed tokens.

model = load_model(Path("base"))
result = token_logprobs(model, pack([(ids, mask)]))      # (N,) float32, differentiable
"""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.trainer import attention
from headrace.trainer.packing import PackedSequences

MAX_LOGITS = 16 * 1024 * 1024
"""Logits held at once, in elements: 64 MiB in float32. Past it the head runs in chunks, and again in backward."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class TokenLogprobs(NamedTuple):
    """What a model says of the targets; axis legend: N targets, in the packing's order."""

    logprobs: torch.Tensor
    """(N,) float32 log-probability of each target given what stands before it in its sequence."""
    entropy: torch.Tensor
    """(N,) float32 entropy in nats of the distribution it was drawn from; carries no gradient."""


def load_model(path: Path, *, device: str = "cpu", dtype: str = "float32") -> PreTrainedModel:
    """The causal model of a Hugging Face directory, ready to be trained on packed sequences.

    Dropout stays off: the importance ratio compares this policy with the one that sampled, not with a noisy copy.
    Raises ``OSError`` where the directory holds no model, ``ValueError`` where its head is more than a matrix.
    """
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"model_dir {path} holds no config.json: give a Hugging Face model directory")
    attention.register()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation=attention.NAME,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    scaled = [name for name in _SCALED_LOGITS if getattr(model.config, name, None) not in (None, 1, 1.0)]
    if scaled:
        raise ValueError(f"{path}: a head with {', '.join(scaled)} is not supported")
    torch.nn.Module.to(model, torch.device(device))
    torch.nn.Module.eval(model)
    return model


def save_model(model: PreTrainedModel, path: Path, *, tokenizer_from: Path | None = None) -> None:
    """Write ``model`` as a Hugging Face directory with one ``model.safetensors``; the same weights give the same bytes.

    Tied tensors are stored once. The tokenizer's files, where ``tokenizer_from`` has any, come along.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(path, max_shard_size="1TB")
    for name in _TOKENIZER_FILES:
        if tokenizer_from is not None and (tokenizer_from / name).is_file():
            shutil.copyfile(tokenizer_from / name, path / name)


def vocabulary_size(model: PreTrainedModel) -> int:
    """Rows of the embedding: every token id is below it."""
    embedding: Any = model.get_input_embeddings()
    return int(embedding.weight.shape[0])


def longest_sequence(model: PreTrainedModel) -> int:
    """Positions that the model was made for, in tokens."""
    return int(model.config.get_text_config().max_position_embeddings)


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
