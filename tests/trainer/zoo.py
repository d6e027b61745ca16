"""A tiny random model of each architecture that the trainer may load."""

from pathlib import Path

import torch
import transformers
from transformers import PretrainedConfig

POSITIONS = 64
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": POSITIONS, **_SPECIAL,
}  # fmt: skip
_GPT2 = {"vocab_size": 50, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4, **_SPECIAL}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_CONFIGS = {
    "bert": ("Bert", _LLAMA),
    "bloom": ("Bloom", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4, **_SPECIAL}),
    "cohere": ("Cohere", _LLAMA),
    "falcon": ("Falcon", _LLAMA),
    "gemma": ("Gemma", {**_LLAMA, "head_dim": 8}),
    "gemma2": ("Gemma2", {**_LLAMA, "head_dim": 8}),
    "gemma3_text": ("Gemma3Text", {**_LLAMA, "head_dim": 8}),
    "gpt2": ("GPT2", _GPT2),
    "gpt_neox": ("GPTNeoX", _LLAMA),
    "gpt_oss": ("GptOss", {**_LLAMA, "head_dim": 8, **_EXPERTS}),
    "llama": ("Llama", _LLAMA),
    "lfm2": ("Lfm2", {**_LLAMA, "layer_types": ["conv", "full_attention"]}),
    "mamba": ("Mamba", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **_SPECIAL}),
    "mistral": ("Mistral", {**_LLAMA, "sliding_window": None}),
    "mixtral": ("Mixtral", {**_LLAMA, **_EXPERTS}),
    "olmo2": ("Olmo2", _LLAMA),
    "olmo3": ("Olmo3", _LLAMA),
    "phi": ("Phi", _LLAMA),
    "phi3": ("Phi3", _LLAMA),
    "qwen2": ("Qwen2", _LLAMA),
    "qwen3": ("Qwen3", {**_LLAMA, "head_dim": 8}),
    "smollm3": ("SmolLM3", _LLAMA),
    "t5": ("T5", {"vocab_size": 50, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}),
}


def config_of(model_type: str, **changes: object) -> PretrainedConfig:
    """The configuration of a tiny model of ``model_type``."""
    name, settings = _CONFIGS[model_type]
    config: PretrainedConfig = getattr(transformers, f"{name}Config")(**{**settings, **changes})
    return config


def write_model(path: Path, model_type: str, *, dtype: torch.dtype = torch.float32, **changes: object) -> Path:
    """A model directory with weights that no symmetry hides: norms and biases are random too."""
    config = config_of(model_type, **changes)
    torch.manual_seed(0)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = auto.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4) if parameter.ndim > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(path)
    return path
