"""A tiny model with a chat template, tools and reasoning, made in a second: random weights behind a tokenizer that can
write anything. What it samples is nonsense; what surrounds it is as with a model of the Qwen3 family."""

import json
from collections.abc import Sequence
from pathlib import Path

TEMPLATE = """{%- if tools %}<|im_start|>system
{%- for tool in tools %}
{{ tool.function | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' and message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>
{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that are text, as in Qwen3."""

MAX_LENGTH = 1024

_TEXTS = ["the user wants to look at the file, so let me run the command and report what it is"] * 4
_OTHER_TOKENS = 192
"""Tokens of the model beyond the trained vocabulary: marks, and some that decode to nothing."""


def make_chat_model(
    folder: Path, *, max_length: int = MAX_LENGTH, texts: Sequence[str] = _TEXTS, vocab_size: int = 320
) -> Path:
    """Write the model to ``folder`` and return it. ``texts``: what the tokenizer learns its tokens from."""
    make_chat_tokenizer(folder, max_length=max_length, texts=texts, vocab_size=vocab_size)
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=vocab_size + _OTHER_TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_chat_tokenizer(
    folder: Path, *, max_length: int = MAX_LENGTH, texts: Sequence[str] = _TEXTS, vocab_size: int = 320
) -> Path:
    """Write the tokenizer with its template to ``folder`` and return it: bytes, and what ``texts`` have often."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
