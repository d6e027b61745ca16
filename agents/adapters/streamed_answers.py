"""Streams of OpenAI's and Anthropic's clients → whole answers, chunk by chunk, as the host reads them.

ChatCompletionChunk("Yes"), ChatCompletionChunk("."), …  →  {"choices": [{"message": {"content": "Yes."}}], …}
"""

from typing import Any, Protocol

from pydantic_core import from_json

from headrace.agents.adapters.requests import plain
from headrace.agents.gateway.canonical import MAX_CHARACTERS, Api


class StreamedAnswer(Protocol):
    """A stream, as far as it was read."""

    def add(self, chunk: Any) -> None:
        """Add what the client library made of an event."""

    def body(self) -> dict[str, Any]:
        """Return the answer in the form that it would have without streaming."""


class Texts:
    """Pieces of texts by key, up to a total length."""

    def __init__(self) -> None:
        self._pieces: dict[Any, list[str]] = {}
        self._room = MAX_CHARACTERS

    def add(self, key: Any, piece: Any) -> None:
        """Append to a text, unless ``piece`` is no text or there is no room."""
        if isinstance(piece, str) and piece and len(piece) <= self._room:
            self._room -= len(piece)
            self._pieces.setdefault(key, []).append(piece)

    def get(self, key: Any) -> str:
        """Return a text; empty if there is none."""
        return "".join(self._pieces.get(key, ()))


class ChatStream:
    """A stream of chat completions: its first choice."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._calls: dict[int, dict[str, Any]] = {}
        self._fields: dict[str, Any] = {}
        self._reason: str | None = None

    def add(self, chunk: Any) -> None:
        for name in ("id", "model"):
            if value := getattr(chunk, name, None):
                self._fields[name] = value
        if (usage := getattr(chunk, "usage", None)) is not None:
            self._fields["usage"] = plain(usage)
        for choice in getattr(chunk, "choices", None) or ():
            if choice.index == 0:
                self._reason = choice.finish_reason or self._reason
                self._add_delta(choice.delta)

    def _add_delta(self, delta: Any) -> None:
        for name in ("content", "refusal", "reasoning", "reasoning_content"):
            self._texts.add(name, getattr(delta, name, None))
        for call in getattr(delta, "tool_calls", None) or ():
            known = self._calls.setdefault(call.index, {"id": None, "name": None})
            known["id"] = call.id or known["id"]
            if call.function is not None:
                known["name"] = call.function.name or known["name"]
                self._texts.add(call.index, call.function.arguments)

    def body(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._texts.get("content")}
        for name in ("refusal", "reasoning", "reasoning_content"):
            if text := self._texts.get(name):
                message[name] = text
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": self._texts.get(index)},
                }
                for index, call in sorted(self._calls.items())
            ]
        return self._fields | {"choices": [{"index": 0, "message": message, "finish_reason": self._reason}]}


class ResponseStream:
    """A stream of the Responses API."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: list[Any] = []
        self._texts = Texts()
        self._is_whole = False

    def add(self, chunk: Any) -> None:
        kind = chunk.type
        if kind in ("response.created", "response.completed", "response.incomplete", "response.failed"):
            self._response = plain(chunk.response)
            self._is_whole = kind != "response.created"
        elif kind == "response.output_item.done":
            self._items.append(plain(chunk.item))
            self._texts = Texts()
        elif kind == "response.output_text.delta":
            self._texts.add("text", chunk.delta)

    def body(self) -> dict[str, Any]:
        if self._is_whole:
            return self._response
        begun = {"type": "message", "role": "assistant", "content": self._texts.get("text")}
        return self._response | {"output": [*self._items, *([begun] if begun["content"] else [])]}


class MessageStream:
    """A stream of the Messages API."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._texts = Texts()

    def add(self, chunk: Any) -> None:
        kind = chunk.type
        if kind == "message_start":
            self._message = plain(chunk.message)
        elif kind == "content_block_start":
            self._blocks[chunk.index] = plain(chunk.content_block)
        elif kind == "content_block_delta":
            delta = chunk.delta
            for name in ("text", "thinking", "signature", "partial_json"):
                self._texts.add((chunk.index, name), getattr(delta, name, None))
        elif kind == "message_delta":
            self._message["stop_reason"] = chunk.delta.stop_reason
            self._message["usage"] = (self._message.get("usage") or {}) | (plain(chunk.usage) or {})

    def body(self) -> dict[str, Any]:
        content = []
        for index, started in sorted(self._blocks.items()):
            block = dict(started)
            for name in ("text", "thinking", "signature"):
                if added := self._texts.get((index, name)):
                    block[name] = f"{block.get(name) or ''}{added}"
            if arguments := self._texts.get((index, "partial_json")):
                try:
                    block["input"] = from_json(arguments)
                except ValueError:
                    block["input"] = arguments  # the stream was cut
            content.append(block)
        return self._message | {"content": content}


STREAMS: dict[Api, type[StreamedAnswer]] = {
    Api.CHAT: ChatStream,
    Api.RESPONSES: ResponseStream,
    Api.MESSAGES: MessageStream,
}
"""What reads the stream of each API."""
