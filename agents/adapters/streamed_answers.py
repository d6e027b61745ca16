"""Streams of OpenAI's and Anthropic's clients → whole answers, chunk by chunk, as the host reads them.

ChatCompletionChunk("Yes"), ChatCompletionChunk("."), …  →  {"choices": [{"message": {"content": "Yes."}}], …}
"""

from typing import Any, Final, Protocol

from pydantic_core import from_json

from headrace.agents.adapters.requests import plain
from headrace.agents.gateway.canonical import MAX_CHARACTERS, Api

KEPT_CHARACTERS: Final = MAX_CHARACTERS // 2
"""Most characters that are kept of the texts of an answer. The readers refuse an answer that is longer than
``MAX_CHARACTERS`` with its names and marks."""

CUT: Final = "[cut]"
"""What stands for the rest of a text that is too long."""


class StreamedAnswer(Protocol):
    """A stream, as far as it was read."""

    def add(self, chunk: Any) -> None:
        """Add what the client library made of an event."""

    def body(self) -> dict[str, Any]:
        """Return the answer in the form that it would have without streaming."""


class Texts:
    """Texts by key, which come in pieces: their beginnings, up to a total length. One that is longer ends with
    :data:`CUT`."""

    def __init__(self) -> None:
        self._pieces: dict[Any, list[str]] = {}
        self._room = KEPT_CHARACTERS
        self._cut: set[Any] = set()

    def add(self, key: Any, piece: Any) -> None:
        """Append to a text, as far as there is room, unless ``piece`` is no text."""
        if not isinstance(piece, str) or not piece or key in self._cut:
            return
        pieces = self._pieces.setdefault(key, [])
        pieces.append(piece[: self._room])
        self._room -= len(pieces[-1])
        if len(pieces[-1]) < len(piece):
            pieces.append(CUT)
            self._cut.add(key)

    def get(self, key: Any) -> str:
        """Return a text; empty if there is none."""
        return "".join(self._pieces.get(key, ()))


class ChatStream:
    """A stream of chat completions: its first choice."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._calls: dict[int, dict[str, Any]] = {}
        self._last_call = 0
        self._fields: dict[str, Any] = {}
        self._reason: str | None = None

    def add(self, chunk: Any) -> None:
        for name in ("id", "model"):
            if value := getattr(chunk, name, None):
                self._fields[name] = value
        if (usage := getattr(chunk, "usage", None)) is not None:
            self._fields["usage"] = plain(usage)
        for choice in getattr(chunk, "choices", None) or ():
            if (getattr(choice, "index", None) or 0) == 0:
                self._reason = getattr(choice, "finish_reason", None) or self._reason
                self._add_delta(getattr(choice, "delta", None))

    def _add_delta(self, delta: Any) -> None:
        for name in ("content", "refusal", "reasoning", "reasoning_content"):
            self._texts.add(name, getattr(delta, name, None))
        for call in getattr(delta, "tool_calls", None) or ():
            index = self._last_call = self._index_of(call)
            known = self._calls.setdefault(index, {"id": None, "name": None})
            known["id"] = getattr(call, "id", None) or known["id"]
            function = getattr(call, "function", None)
            known["name"] = getattr(function, "name", None) or known["name"]
            self._texts.add(index, getattr(function, "arguments", None))

    def _index_of(self, call: Any) -> int:
        """Return the index of a piece's call. Some servers leave it out: another id begins another call then."""
        index = getattr(call, "index", None)
        if type(index) is int:
            return index
        begun = self._calls.get(self._last_call)
        is_same = begun is None or getattr(call, "id", None) in (None, "", begun["id"])
        return self._last_call if is_same else max(self._calls) + 1

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
            self._response = _fields(chunk.response)
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
            self._message = _fields(chunk.message)
        elif kind == "content_block_start":
            if type(chunk.index) is int:
                self._blocks[chunk.index] = _fields(chunk.content_block)
        elif kind == "content_block_delta":
            delta = chunk.delta
            for name in ("text", "thinking", "signature", "partial_json"):
                self._texts.add((chunk.index, name), getattr(delta, name, None))
        elif kind == "message_delta":
            self._message["stop_reason"] = chunk.delta.stop_reason
            self._message["usage"] = _fields(self._message.get("usage")) | _fields(chunk.usage)

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


def _fields(value: Any) -> dict[str, Any]:
    """Return what an object of a library holds; nothing if it is another value."""
    found = plain(value)
    return found if isinstance(found, dict) else {}


STREAMS: dict[Api, type[StreamedAnswer]] = {
    Api.CHAT: ChatStream,
    Api.RESPONSES: ResponseStream,
    Api.MESSAGES: MessageStream,
}
"""What reads the stream of each API."""
