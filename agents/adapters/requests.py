"""Requests and answers of client libraries → canonical messages, by the gateway's own readers.

    {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}  →  (Message(USER, texts=("Hi",)),)

What those readers refuse, such as images, is replaced by its name in brackets: an adapter records beside a call that
takes place anyway.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from headrace.agents.gateway.canonical import Api, BadRequest, Message, MessageRole
from headrace.agents.gateway.requests.read import read

_DEPTH = 64
"""Deepest nesting that is read."""

_VALUES = 250_000
"""Most values that are read of one, which may contain itself."""

# Not sets: what a program sends as a type may not be hashable.
_TEXT_BLOCKS = ("text", "input_text", "output_text", "refusal")
_ANSWER_BLOCKS = ("tool_use", "thinking", "redacted_thinking")
_UNFINISHED = ("in_progress", "queued")
"""States of a response whose stream was left, which are no reason why sampling stopped."""

_ITEMS = (
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call",
    "function_call_output",
    "custom_tool_call_output",
)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request, as far as it could be read."""

    model: str
    """Model that was asked for."""
    messages: tuple[Message, ...] | None
    """The conversation; ``None`` if it cannot be read, for example because it is an iterator."""
    previous_response_id: str | None = None
    """Responses API: the response that the request continues; ``messages`` are what follows it."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """An answer, as far as it could be read."""

    model: str = ""
    """Model that answered; empty if the answer does not say."""
    message: Message | None = None
    """The first choice."""
    finish_reason: str | None = None
    """Why sampling stopped, in the API's own words."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""
    completion_tokens: int = 0
    """Tokens sampled."""
    response_id: str | None = None
    """Id by which a later request may refer to the answer."""


def read_request(api: Api, body: dict[str, Any]) -> ReadRequest:
    """Read the body of a request; never raises for what a client may send."""
    name = body.get("model")
    model = name[:512] if isinstance(name, str) else ""
    history = "input" if api is Api.RESPONSES else "messages"
    given = plain(body.get(history))
    if given is None:
        return ReadRequest(model, None)
    reduced: dict[str, Any] = {"model": "m", history: _readable(api, given)}
    for key in ("system", "instructions", "previous_response_id"):
        if (value := plain(body.get(key))) is not None:
            reduced[key] = _blocks(value) if isinstance(value, list) else value
    try:
        found = read(api, reduced)
    except BadRequest:
        return ReadRequest(model, None)
    return ReadRequest(model, found.messages, found.previous_response_id)


def read_answer(api: Api, answer: dict[str, Any]) -> ReadAnswer:
    """Read a whole answer: the JSON body of a response that is not a stream."""
    usage = _object(answer.get("usage"))
    if api is Api.CHAT:
        choices = answer.get("choices")
        first = _object(choices[0]) if isinstance(choices, list) and choices else {}
        said: Any = [_object(first.get("message")) | {"role": "assistant"}]
        reason = first.get("finish_reason")
        tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    elif api is Api.RESPONSES:
        said = answer.get("output")
        reason = _object(answer.get("incomplete_details")).get("reason") or answer.get("status")
        if reason in _UNFINISHED:
            reason = None
        tokens = usage.get("input_tokens"), usage.get("output_tokens")
    else:
        said = [{"role": "assistant", "content": answer.get("content")}]
        reason = answer.get("stop_reason")
        tokens = _cached(usage), usage.get("output_tokens")
    request = read_request(api, {"input" if api is Api.RESPONSES else "messages": said})
    messages = request.messages or ()
    model, unique = answer.get("model"), answer.get("id")
    return ReadAnswer(
        model=model[:512] if isinstance(model, str) else "",
        message=next((each for each in messages if each.role is MessageRole.ASSISTANT), None),
        finish_reason=reason if isinstance(reason, str) else None,
        prompt_tokens=_count(tokens[0]),
        completion_tokens=_count(tokens[1]),
        response_id=unique if isinstance(unique, str) else None,
    )


def plain(value: Any) -> Any:
    """Return ``value`` with models and tuples as dicts and lists. Anything else that is not JSON becomes ``None``, so
    that no iterator is consumed."""
    return _plain(value, _DEPTH, iter(range(_VALUES)))


def _plain(value: Any, depth: int, places: Iterator[int]) -> Any:
    if depth == 0 or next(places, None) is None:
        return None
    if isinstance(value, BaseModel):
        try:
            value = value.model_dump(mode="json", exclude_none=True, warnings=False)
        except Exception:  # noqa: BLE001 - what it holds cannot be serialised, or a serialiser of the host fails
            return None
    if isinstance(value, dict):
        return {key: _plain(each, depth - 1, places) for key, each in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [_plain(each, depth - 1, places) for each in value]
    return value if isinstance(value, (str, int, float)) else None


def _readable(api: Api, history: Any) -> Any:
    """Return the messages or items of a request in a form that the readers accept."""
    if not isinstance(history, list):
        return history
    if api is Api.RESPONSES:
        history = [each for each in history if isinstance(each, dict) and each.get("type", "message") in _ITEMS]
    found = []
    for message in history:
        entry = dict(message) if isinstance(message, dict) else {}
        for key in ("content", "output"):
            if isinstance(entry.get(key), list):
                entry[key] = _blocks(entry[key])
        entry.pop("audio", None)
        found.append(entry)
    return found


def _blocks(blocks: list[Any]) -> list[Any]:
    """Return content blocks with what is neither text nor a tool's as its name."""
    found: list[Any] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("reasoning_text", "summary_text"):
            found.append({"type": "text", "text": block.get("text")})
        elif kind == "tool_result" and isinstance(block.get("content"), list):
            found.append(block | {"content": _blocks(block["content"])})
        elif kind in _TEXT_BLOCKS or kind in _ANSWER_BLOCKS or kind == "tool_result":
            found.append(block)
        else:
            found.append({"type": "text", "text": f"[{str(kind)[:40]}]"})
    return found


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0


def _cached(usage: dict[str, Any]) -> int:
    """Tokens of a prompt of the Messages API, which counts those of its cache apart."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(_count(usage.get(name)) for name in names)
