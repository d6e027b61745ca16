"""Answers about models: ``/v1/models`` in OpenAI's and in Anthropic's form, and ``count_tokens``.

A client is Anthropic's if it sends the header ``anthropic-version``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.agents.gateway.framing.json_bytes import encode


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients can ask for."""

    id: str
    created_s: int
    """Unix time in seconds since which it is served."""
    owner: str = "headrace"
    max_tokens: int | None = None
    """Longest sequence of prompt and answer in tokens; ``None`` if unknown."""


def models_body(models: Sequence[ServedModel], anthropic_version: str | None) -> bytes:
    """Return the answer of ``GET /v1/models``: all models, on one page."""
    if anthropic_version is None:
        return encode({"object": "list", "data": [_openai(model) for model in models]})
    data = [_anthropic(model) for model in models]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return encode({"data": data, "has_more": False, "first_id": first, "last_id": last})


def model_body(model: ServedModel, anthropic_version: str | None) -> bytes:
    """Return the answer of ``GET /v1/models/{id}``."""
    return encode(_openai(model) if anthropic_version is None else _anthropic(model))


def token_count_body(tokens: int) -> bytes:
    """Return the answer of ``POST /v1/messages/count_tokens``."""
    return encode({"input_tokens": tokens})


def _openai(model: ServedModel) -> dict[str, Any]:
    written: dict[str, Any] = {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": model.owner,
    }
    if model.max_tokens is not None:
        written["max_model_len"] = model.max_tokens  # vLLM's name; clients of vLLM read it
    return written


def _anthropic(model: ServedModel) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created_s, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.max_tokens,
        "max_tokens": model.max_tokens,
    }
