"""Loads a causal language model from a Hugging Face directory, and saves it as one."""

import copy
import hashlib
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.trainer.model import attention
from headrace.trainer.model.architectures import TESTED, UnsupportedModel, obstacles, position_limit, sliding_window
from headrace.trainer.model.packing_check import try_packing

_log = logging.getLogger(__name__)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def load_model(path: Path, *, device: str = "cpu", dtype: str = "float32") -> PreTrainedModel:
    """Load the causal model of a Hugging Face directory for training on packed sequences.

    Dropout stays off: the importance ratio compares this policy with the behaviour policy, not with a noisy copy.
    Raises ``OSError`` if the directory holds no model, :class:`UnsupportedModel` if it cannot be trained; logs a
    warning for an untested architecture.
    """
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"model_dir {path} holds no config.json: give a Hugging Face model directory")
    attention.register()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    name = f"model_dir {path} ({config.model_type})"
    if found := obstacles(config):
        raise UnsupportedModel(f"{name} cannot be trained: {'; '.join(found)}")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=attention.NAME,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    torch.nn.Module.to(model, torch.device(device))
    torch.nn.Module.eval(model)
    try:
        try_packing(model)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name} cannot be trained: {error}") from error
    if config.model_type not in TESTED:
        _log.warning(
            "%s: this architecture is not tested; a trial agreed with the plain model. Tested: %s",
            name, ", ".join(sorted(TESTED)),
        )  # fmt: skip
    window = sliding_window(config)
    if window is not None and longest_sequence(model) == window:
        _log.warning(
            "%s: attention is limited to %d tokens, and windows are not implemented: longer segments are rejected",
            name,
            window,
        )
    return model


def save_model(
    model: PreTrainedModel,
    path: Path,
    tensors: dict[str, torch.Tensor] | None = None,
    *,
    tokenizer_from: Path | None = None,
) -> None:
    """Write ``model`` as a Hugging Face directory with one ``model.safetensors``; the same weights give the same bytes.

    ``tensors`` are the weights to write if ``model`` holds others: a shard, adapters, another type. Tied tensors are
    stored once. Tokenizer files in ``tokenizer_from`` are copied.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(path, max_shard_size="1TB", state_dict=tensors)
    if tensors is not None:  # it was written with the type of the weights in memory, which differs
        config = copy.deepcopy(model.config)
        config.dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
        config.save_pretrained(path)
    for file in path.glob("*.safetensors"):  # the library creates them with mode 0600
        file.chmod((path / "config.json").stat().st_mode)
    for name in _TOKENIZER_FILES:
        if tokenizer_from is not None and (tokenizer_from / name).is_file():
            shutil.copyfile(tokenizer_from / name, path / name)


def weights_sha256(path: Path) -> bytes:
    """Returns a hash (32 bytes) of names and contents of the safetensors files of a Hugging Face directory."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.digest()


def vocabulary_size(model: PreTrainedModel) -> int:
    """Returns the rows of the embedding: every token id is below this number."""
    embedding: Any = model.get_input_embeddings()
    return int(embedding.weight.shape[0])


def longest_sequence(model: PreTrainedModel) -> int:
    """Returns the tokens of the longest sequence that the model can be trained on."""
    return position_limit(model.config)


def attention_crossover(model: PreTrainedModel) -> float:
    """Returns the length in tokens at which attention costs as much as the linear layers: parameters / (layers ·
    width).

    A token costs 2 operations per parameter and, per layer, 2 · width for each of the two products with its context,
    which is half of the sequence on average.
    """
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_attention_heads * head
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return float(parameters / (config.num_hidden_layers * width))
