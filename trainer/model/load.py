"""A causal language model from a Hugging Face directory, and back into one."""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.trainer.model import attention

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


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


def save_model(
    model: PreTrainedModel,
    path: Path,
    tensors: dict[str, torch.Tensor] | None = None,
    *,
    tokenizer_from: Path | None = None,
) -> None:
    """Write ``model`` as a Hugging Face directory with one ``model.safetensors``; the same weights give the same bytes.

    ``tensors`` are its weights where it holds only a shard of them. Tied tensors are stored once. The tokenizer's
    files, where ``tokenizer_from`` has any, come along.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(path, max_shard_size="1TB", state_dict=tensors)
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


def attention_crossover(model: PreTrainedModel) -> float:
    """Length in tokens at which attention is as much work as the linear layers: parameters / (layers · width).

    A token costs 2 operations a parameter and, a layer, 2 · width for each of the two products with the half of the
    sequence that stands before it, on average.
    """
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_attention_heads * head
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return float(parameters / (config.num_hidden_layers * width))
