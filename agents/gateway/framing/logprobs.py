"""Log-probabilities in the forms of OpenAI's APIs. They are never below -9999.0, which stands for minus infinity."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.agents.gateway.answer import TokenLogprob
from headrace.agents.gateway.framing.json_bytes import well_formed

LOWEST = -9999.0
"""What OpenAI's APIs write for a token that is not among the likely ones."""


def token_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return ``tokens`` as Chat Completions and Responses write them."""
    return [
        {**_entry(each.token, each.logprob), "top_logprobs": [_entry(token, logprob) for token, logprob in each.top]}
        for each in tokens
    ]


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Return ``tokens`` as Completions writes them. ``offset``: characters of the choice's tokens before these."""
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each.token)
    top = [{token: _bounded(logprob) for token, logprob in each.top} for each in tokens]
    return {
        "text_offset": offsets,
        "token_logprobs": [_bounded(each.logprob) for each in tokens],
        "tokens": [each.token for each in tokens],
        "top_logprobs": top if any(top) else None,
    }


def _entry(token: str, logprob: float) -> dict[str, Any]:
    shown = well_formed(token)
    return {"token": shown, "logprob": _bounded(logprob), "bytes": list(shown.encode())}


def _bounded(logprob: float) -> float:
    return max(logprob, LOWEST) if math.isfinite(logprob) else LOWEST
