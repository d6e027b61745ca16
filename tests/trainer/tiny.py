"""A tiny random Qwen3 that vLLM serves, and log-probabilities of a plain forward pass."""

from collections.abc import Sequence
from pathlib import Path

VOCABULARY = 230


def tiny_policy(path: Path, *, seed: int, tied: bool = True) -> Path:
    """A model directory with a word-level tokenizer (``w0 w1 …``); embeddings and head share weights where ``tied``."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)  # Peaked distributions: two seeds differ by nats, not by thousandths.
    model.save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1").save_pretrained(path)
    return path


def forward_logprobs(path: Path, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of each token after the first: float32, the model's own attention, one sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    ids_T = torch.tensor(list(token_ids))
    with torch.no_grad():
        logprobs_TV = model(ids_T[None]).logits[0].log_softmax(-1)
    return logprobs_TV[:-1].gather(1, ids_T[1:, None])[:, 0].tolist()
