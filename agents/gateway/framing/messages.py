"""Answers in the form of Anthropic's Messages API.

    event: content_block_delta
    data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

Differences from vLLM 0.32, whose converter the tests use as reference:

- A thinking block starts with ``"signature":""``, which Anthropic's types require. Its signature is given, so that it
  can be recognised when it comes back; vLLM's is random.
- ``message_delta`` and ``message_stop`` wait until the call is durable. So does the end of the last block, and text
  that follows a tool call, because the call's arguments may continue until another block starts.
- An aborted answer ends with ``max_tokens``, the only word of the API for "incomplete"; vLLM writes ``null``.
- In an answer in one piece, blocks keep the order in which they were sampled, as in a stream; an empty answer has no
  blocks. Arguments that were cut short are read as Anthropic's client reads them in a stream (``{"n":1,"path":"/t``
  becomes ``{"n":1}``); anything else that is not a JSON object becomes ``{"raw":"…"}``. vLLM answers 500.
- Errors have Anthropic's types and a ``request_id``.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    AnswerUsage,
    ChoiceEnd,
    FinishReason,
    TokenLogprob,
)
from headrace.agents.gateway.framing.accumulate import Block, BlockKind
from headrace.agents.gateway.framing.delivered import Delivered, DeliveredCall, delivered_of
from headrace.agents.gateway.framing.errors import ApiError, anthropic_object
from headrace.agents.gateway.framing.framer import BlockFramer
from headrace.agents.gateway.framing.json_bytes import encode, event, quote

_PING = event(b"ping", b'{"type":"ping"}')
_STOP = event(b"message_stop", b'{"type":"message_stop"}')
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b:'
_DELTAS = {
    BlockKind.TEXT: b'"text_delta","text"',
    BlockKind.REASONING: b'"thinking_delta","thinking"',
    BlockKind.TOOL: b'"input_json_delta","partial_json"',
}


class MessagesFramer(BlockFramer):
    """Makes the bytes of one answer of ``/v1/messages``."""

    def __init__(self, meta: AnswerMeta, options: AnswerOptions) -> None:
        """Raises ``ValueError`` if ``options`` ask for several choices."""
        super().__init__(meta, options)
        self._head = b""
        """Start of the next delta of the open block."""

    def begin(self) -> bytes:
        """Return ``message_start``."""
        usage = {"input_tokens": self.meta.prompt_tokens, "output_tokens": 0}
        message = self._message([], None, None, usage)
        return event(b"message_start", encode({"type": "message_start", "message": message}))

    def terminal(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the end of the last block, ``message_delta`` and ``message_stop``."""
        (end,) = self.answer.in_choice_order(ends)
        events = self._pieces(self.answer.release()) + self._stopped(is_cut=_is_cut(end))
        reason, stop_sequence = self._stop_reason(end)
        last = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop_sequence},
            "usage": _usage(usage),
        }
        return events + event(b"message_delta", encode(last)) + _STOP

    def failed(self, error: ApiError) -> bytes:
        """Return the error as the last event."""
        return event(b"error", encode(anthropic_object(error)))

    def ping(self) -> bytes:
        """Return a ``ping``, which may come anywhere in a stream."""
        return _PING

    def whole(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return a message."""
        (end,) = self.answer.in_choice_order(ends)
        self.answer.release()
        content = [self._content(block) for block in self.answer.choices[0].blocks]
        return encode(self._message(content, *self._stop_reason(end), _usage(usage)))

    def delivered(self, choice: int = 0) -> Delivered:
        """Return what the client has received; arguments as the objects that it has made of them."""
        received = delivered_of(self.answer.choices[choice], joins_blocks=False, echoed=self.meta.signature)
        return replace(received, calls=tuple(map(_as_object, received.calls)))

    def _start(self, block: Block) -> bytes:
        self._head = _DELTA % (block.position, _DELTAS[block.kind])
        content: dict[str, Any]
        match block.kind:
            case BlockKind.TEXT:
                content = {"type": "text", "text": ""}
            case BlockKind.REASONING:
                content = {"type": "thinking", "thinking": "", "signature": ""}
            case BlockKind.TOOL:
                content = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
        started = {"type": "content_block_start", "index": block.position, "content_block": content}
        return event(b"content_block_start", encode(started))

    def _piece(self, block: Block, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        return self._head + quote(text) + b"}}\n\n"

    def _stop(self, block: Block, *, is_cut: bool) -> bytes:
        events = b""
        if block.kind is BlockKind.REASONING and self.meta.signature:
            signature = _DELTA % (block.position, b'"signature_delta","signature"')
            events = signature + quote(self.meta.signature) + b"}}\n\n"
        return events + event(b"content_block_stop", b'{"type":"content_block_stop","index":%d}' % block.position)

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop_sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.meta.id,
            "type": "message",
            "role": "assistant",
            "model": self.meta.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
        }

    def _content(self, block: Block) -> dict[str, Any]:
        match block.kind:
            case BlockKind.TEXT:
                return {"type": "text", "text": block.text}
            case BlockKind.REASONING:
                return {"type": "thinking", "thinking": block.text, "signature": self.meta.signature}
            case BlockKind.TOOL:
                return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": tool_input(block.text)}

    def _stop_reason(self, end: ChoiceEnd) -> tuple[str, str | None]:
        if _is_cut(end):
            return "max_tokens", None
        calls = self.answer.choices[0].tool_calls()
        # A stop string inside a call cut it short, and it must not run.
        if end.stop_string is not None and not (calls and _is_json(calls[-1].text)):
            return "stop_sequence", end.stop_string
        return ("tool_use" if calls else "end_turn"), None


def tool_input(arguments: str) -> dict[str, Any]:
    """Return ``arguments``, the text of a call's arguments, as the JSON object that ``tool_use`` needs.

    Nothing becomes ``{}``, an object that was cut short loses its incomplete value, anything else becomes
    ``{"raw": arguments}``.
    """
    if not arguments:
        return {}
    try:
        value = _read(arguments, is_cut=True)
    except ValueError:
        return {"raw": arguments}
    return value if isinstance(value, dict) else {"raw": arguments}


def _read(arguments: str, *, is_cut: bool = False) -> Any:
    """Return the JSON in ``arguments``. Raises ``ValueError`` if it is none, or has a number beyond all doubles."""
    value = from_json(arguments, allow_inf_nan=False, allow_partial=is_cut)
    encode(value)  # 1e999 was read as infinity
    return value


def _as_object(call: DeliveredCall) -> DeliveredCall:
    try:
        is_object = isinstance(_read(call.arguments), dict)
    except ValueError:
        is_object = False
    return call if is_object else replace(call, arguments=encode(tool_input(call.arguments)).decode())


def _is_cut(end: ChoiceEnd) -> bool:
    return end.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _usage(usage: AnswerUsage) -> dict[str, Any]:
    """Return ``usage`` as the Messages API counts it: ``input_tokens`` are those that were not in the cache."""
    written: dict[str, Any] = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
    if usage.cached is not None:
        written["input_tokens"] = max(0, usage.prompt - usage.cached)
        written["cache_read_input_tokens"] = usage.cached
    if usage.reasoning is not None:
        written["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return written
