"""Answers in the form of OpenAI's Responses API.

    event: response.output_text.delta
    data: {"type":"response.output_text.delta","item_id":"msg_1_0","output_index":0,…,"delta":"Hi","sequence_number":4}

Each block is an output item with one content part. As in vLLM 0.32, reasoning is ``reasoning_text`` in the item's
content, and its summary is empty. Differences from vLLM 0.32:

- An answer that is cut short ends with ``response.incomplete``, as OpenAI's API documents; vLLM sends
  ``response.completed`` with the status ``incomplete``. Its last item is ``incomplete``, too. If the engine aborted
  the answer, ``incomplete_details`` is ``null``, because OpenAI has no word for that.
- The end of the last item waits until the call is durable, with the final event. So does text that follows a tool
  call, because the call's arguments may continue until another item starts.
- ``item_id`` follows from the response's id, and ``encrypted_content`` is written if it is given.
- An answer without text, reasoning or calls has one message with an empty text; vLLM's has no items, and a client that
  sends the items back then leaves the answer out of the conversation. No other part is empty.
- Log-probabilities are those of the text, as in vLLM; those of reasoning and calls are not delivered.
- Of a custom tool's call that was cut, the client has the input so far; vLLM sends the JSON around it once more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    AnswerUsage,
    ChoiceEnd,
    FinishReason,
    TokenLogprob,
)
from headrace.agents.gateway.framing.accumulate import Block, BlockKind, Piece
from headrace.agents.gateway.framing.delivered import Delivered, delivered_of
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind, message_of
from headrace.agents.gateway.framing.framer import BlockFramer
from headrace.agents.gateway.framing.json_bytes import encode, event, quote
from headrace.agents.gateway.framing.logprobs import token_logprobs
from headrace.agents.gateway.framing.response_object import ResponseObject, item_id_of, item_of, part_of
from headrace.agents.gateway.response_tools import CustomInput, ResponseTools, custom_arguments, custom_input

_EVENTS = {
    BlockKind.TEXT: "response.output_text",
    BlockKind.REASONING: "response.reasoning_text",
    BlockKind.TOOL: "response.function_call_arguments",
}
_CUSTOM_INPUT = "response.custom_tool_call_input"
_FAILURES = {ErrorKind.RATE_LIMIT: "rate_limit_exceeded", ErrorKind.INVALID_REQUEST: "invalid_prompt"}
"""Codes of ``response.failed``; all other errors are ``server_error``."""


class ResponsesFramer(BlockFramer):
    """Makes the bytes of one answer of ``/v1/responses``."""

    def __init__(self, meta: AnswerMeta, options: AnswerOptions, request: Mapping[str, Any]) -> None:
        """``request``: the body of the request, of which the response repeats some fields.

        Raises ``ValueError`` if ``options`` ask for several choices or a repeated field has a number that is not
        finite.
        """
        super().__init__(meta, options)
        self._object = ResponseObject(meta, request)
        self._tools = ResponseTools(request)
        self._sequence = 0
        self._head = b""
        """Start of the next delta of the open item."""
        self._input: CustomInput | None = None
        """Reads the input of the open item, if it is a custom tool's call."""

    def begin(self) -> bytes:
        """Return ``response.created`` and ``response.in_progress``."""
        response = self._object.bytes_of("in_progress", [])
        return self._lifecycle("response.created", response) + self._lifecycle("response.in_progress", response)

    def terminal(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the end of the last item, and ``response.completed`` or ``response.incomplete``."""
        (end,) = self.answer.in_choice_order(ends)
        status = _status(end)
        events = self._pieces(self._remaining()) + self._stopped(is_cut=status == "incomplete")
        return events + self._lifecycle(f"response.{status}", self.whole(ends, usage))

    def failed(self, error: ApiError) -> bytes:
        """Return ``response.failed``, with the output so far; before it the start of the stream if that is missing."""
        start = b"" if self._sequence else self.begin()
        output = self._output("incomplete" if self._open is not None else "completed")
        code = _FAILURES.get(error.kind, "server_error")
        response = self._object.bytes_of("failed", output, error={"code": code, "message": message_of(error)})
        return start + self._lifecycle("response.failed", response)

    def whole(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the response object, which is also what ``GET /v1/responses/{id}`` answers."""
        (end,) = self.answer.in_choice_order(ends)
        self._remaining()
        status = _status(end)
        reason = "max_output_tokens" if end.finish_reason is FinishReason.LENGTH else None
        return self._object.bytes_of(status, self._output(status), usage=usage, incomplete_reason=reason)

    def delivered(self, choice: int = 0) -> Delivered:
        """Return what the client has received."""
        echoed = self.meta.encrypted_content or ""
        found = delivered_of(self.answer.choices[choice], joins_blocks=False, echoed=echoed)
        calls = (
            replace(call, arguments=custom_arguments(custom_input(call.arguments)))
            if self._tools.named(call.name).is_custom
            else call
            for call in found.calls
        )
        return replace(found, calls=tuple(calls))

    def _remaining(self) -> tuple[Piece, ...]:
        """Return the pieces that were held back, or an empty text if the answer has no item at all."""
        released = self.answer.release()
        if self.answer.choices[0].blocks:
            return released
        return (self.answer.open_empty_text(0),)

    def _output(self, last_status: str) -> list[dict[str, Any]]:
        blocks = self.answer.choices[0].blocks
        statuses = ["completed"] * (len(blocks) - 1) + [last_status]
        return [item_of(block, self.meta, self._tools, status) for block, status in zip(blocks, statuses, strict=False)]

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        """Return the next event."""
        data = encode({"type": name, **fields, "sequence_number": self._sequence})
        self._sequence += 1
        return event(name.encode(), data)

    def _lifecycle(self, name: str, response: bytes) -> bytes:
        """Return the next event, about the response as a whole."""
        data = b'{"type":"%b","response":%b,"sequence_number":%d}' % (name.encode(), response, self._sequence)
        self._sequence += 1
        return event(name.encode(), data)

    def _start(self, block: Block) -> bytes:
        place = self._place(block)
        is_custom = block.kind is BlockKind.TOOL and self._tools.named(block.name).is_custom
        self._input = CustomInput() if is_custom else None
        name = f"{_CUSTOM_INPUT if is_custom else _EVENTS[block.kind]}.delta"
        constant = {"type": name, **place}
        if block.kind is BlockKind.TEXT:
            constant["logprobs"] = []
        self._head = b"event: %b\ndata: %b" % (name.encode(), encode(constant)[:-1] + b',"delta":')
        # At its start, an item has its first piece already: it is announced without.
        empty = Block(block.kind, block.position, block.call, block.call_id, block.name)
        item = item_of(empty, self.meta, self._tools, "in_progress")
        added = self._event("response.output_item.added", {"output_index": block.position, "item": item})
        if block.kind is BlockKind.TOOL:
            return added
        return added + self._event("response.content_part.added", {**place, "part": part_of(empty)})

    def _piece(self, block: Block, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        if logprobs and block.kind is BlockKind.TEXT:
            name = "response.output_text.delta"
            return self._event(name, {**self._place(block), "delta": text, "logprobs": token_logprobs(logprobs)})
        return self._delta(text if self._input is None else self._input.feed(text))

    def _delta(self, text: str) -> bytes:
        if not text:
            return b""
        self._sequence += 1
        return b'%b%b,"sequence_number":%d}\n\n' % (self._head, quote(text), self._sequence - 1)

    def _stop(self, block: Block, *, is_cut: bool) -> bytes:
        place = self._place(block)
        name, events = f"{_EVENTS[block.kind]}.done", b""
        match block.kind:
            case BlockKind.TEXT:
                done = {**place, "text": block.text, "logprobs": token_logprobs(block.logprobs)}
            case BlockKind.REASONING:
                done = {**place, "text": block.text}
            case BlockKind.TOOL if self._input is not None:
                events = self._delta(self._input.end())
                name, done = f"{_CUSTOM_INPUT}.done", {**place, "input": custom_input(block.text)}
            case BlockKind.TOOL:
                done = {**place, "arguments": block.text, "name": self._tools.named(block.name).name}
        events += self._event(name, done)
        if block.kind is not BlockKind.TOOL:
            events += self._event("response.content_part.done", {**place, "part": part_of(block)})
        item = item_of(block, self.meta, self._tools, "incomplete" if is_cut else "completed")
        return events + self._event("response.output_item.done", {"output_index": block.position, "item": item})

    def _place(self, block: Block) -> dict[str, Any]:
        """Return the fields that say which item and part an event is about."""
        place = {"item_id": item_id_of(block, self.meta, self._tools), "output_index": block.position}
        return place if block.kind is BlockKind.TOOL else {**place, "content_index": 0}


def _status(end: ChoiceEnd) -> str:
    return "incomplete" if end.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT) else "completed"
