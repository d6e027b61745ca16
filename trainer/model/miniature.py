"""A Qwen3 small enough to train in minutes on two cores, with random weights: the origin of the shipped base model."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def miniature_qwen3(
    vocab_size: int,
    *,
    end_id: int,
    pad_id: int,
    seed: int,
    max_positions: int = 1024,
    tied: bool = False,
    key_value_heads: int = 1,
) -> Qwen3ForCausalLM:
    """Returns a model of about 0.35 M float32 parameters: hidden 96, 3 layers, 3 heads of 32, MLP 288.

    The weights depend on ``seed`` alone. ``tied`` shares the embedding with the LM head, and ``key_value_heads`` is 1,
    or 3 for keys of every head's own: with both, copying is learnt in fewer steps.
    """
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=key_value_heads,
        head_dim=32,
        intermediate_size=288,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Qwen3ForCausalLM = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
        return model
