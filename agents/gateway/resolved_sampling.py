"""vLLM's ``sampling_params``, as render resolved them → what the log records about the distribution that was sampled.

    {"temperature": 0.7, "top_p": 0.9, "logit_bias": {"3": 1.0}, "stop": ["###"]}
    → Sampling(temperature=0.7, top_p=0.9, altered_by=["logit_bias"])

A parameter that is absent has the default of vLLM, as render and generate leave out defaults; the model's
``generation_config.json`` is already applied. Every parameter is in exactly one of the three groups below. One that is
in none, of a vLLM that is newer than this module, is recorded under its own name: then the tokens are labelled
``unknown_sampling``, and are not trained until somebody has decided which group it belongs to.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from headrace.schemas.events import Sampling

RECORDED = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "min_tokens",
    }
)
"""Parameters that are fields of ``Sampling``."""

WITHOUT_EFFECT = frozenset(
    {
        # How much is sampled, and where it ends.
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "repetition_detection",
        # What is reported, and in which form.
        "logprobs",
        "prompt_logprobs",
        "prompt_logprob_token_ids",
        "prompt_logprob_start",
        "logprob_token_ids",
        "flat_logprobs",
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "output_kind",
        "stream_interval",
        "routed_experts_prompt_start",
        # How the engine works.
        "skip_clone",
        "skip_reading_prefix_cache",
        "output_text_buffer_length",
        # Derived from others by the engine.
        "_eos_token_id",
        "_all_stop_token_ids",
        "_bad_words_token_ids",
        "_watermarking_skipped",
    }
)
"""Parameters that do not change the distribution of the next token."""

_TRANSFERS = {"kv_transfer_params", "ec_transfer_params"}


def _is_set(value: Any) -> bool:
    return value is not None and value != [] and value != {}


def _has_arguments(value: Any) -> bool:
    """Arguments of custom logits processors; those of a transfer of the cache are none."""
    return _is_set(value) and not (isinstance(value, dict) and value.keys() <= _TRANSFERS)


ALTERING: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "structured_outputs": ("structured_output", _is_set),
    "logit_bias": ("logit_bias", _is_set),
    "allowed_token_ids": ("allowed_token_ids", lambda value: value is not None),
    "bad_words": ("bad_words", _is_set),
    "thinking_token_budget": ("thinking_token_budget", _is_set),
    "trace_decode_token_ids": ("trace_decode_token_ids", _is_set),
    "extra_args": ("extra_args", _has_arguments),
    # None leaves it to the engine's configuration, of which no request tells.
    "watermarking": ("watermarking", lambda value: value is True),
}
"""Parameters that change the distribution in ways that training cannot reproduce: vLLM's name → name in
``Sampling.altered_by``, and whether a value has an effect."""


def resolved_sampling(sampling_params: Mapping[str, Any]) -> Sampling:
    """Return what ``sampling_params``, of an answer of render or of a request to generate, do to the distribution.

    Which log-probabilities the engine reports is not among them: ``logprobs`` is ``None``. A value that ``Sampling``
    cannot hold is left out, and its parameter counts as altering.
    """
    fields: dict[str, Any] = {"temperature": 1.0}
    altered: list[str] = []
    for name, value in sampling_params.items():
        if name in ALTERING:
            label, has_effect = ALTERING[name]
            if has_effect(value):
                altered.append(label)
        elif name in WITHOUT_EFFECT:
            continue
        elif value is not None:
            # Fields of the same name that vLLM may get are not ours.
            key = name if name in RECORDED or name not in Sampling.model_fields else f"vllm_{name}"
            fields[key] = value
    try:
        return Sampling(**fields, altered_by=sorted(altered))
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors()}
        kept = {name: value for name, value in fields.items() if name not in wrong}
        return Sampling(**kept, altered_by=sorted({*altered, *wrong}))
