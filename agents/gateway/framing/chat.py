"""Answers in the form of OpenAI's Chat Completions API.

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk",…,"choices":[{"index":0,"delta":{"content":"Hi"},…}]}

As in vLLM 0.32, reasoning is ``reasoning`` (not ``reasoning_content``), and a choice that ended has a ``stop_reason``,
the stop string that was found. Differences from vLLM 0.32 beside those of
:mod:`headrace.agents.gateway.framing.chunked`:

- Tool calls are numbered from 0 in the order of their starts, whatever the parser's numbers are.
- Without tool calls, an answer in one piece has ``content`` ``""`` rather than ``null`` if the text is empty.
"""

from collections.abc import Sequence
from typing import Any

from headrace.agents.gateway.answer import AnswerMeta, AnswerOptions, ChoiceEnd, Delta, FinishReason, TokenLogprob
from headrace.agents.gateway.framing.accumulate import Block, BlockKind, ChoiceAnswer
from headrace.agents.gateway.framing.chunked import ChunkedFramer
from headrace.agents.gateway.framing.json_bytes import quote
from headrace.agents.gateway.framing.logprobs import token_logprobs

_FIELDS = {BlockKind.TEXT: b'{"content":', BlockKind.REASONING: b'{"reasoning":'}


class ChatFramer(ChunkedFramer):
    """Makes the bytes of one answer of ``/v1/chat/completions``."""

    _empty = b"{}"

    def __init__(self, meta: AnswerMeta, options: AnswerOptions) -> None:
        super().__init__(
            meta, options, kind="chat.completion", chunk="chat.completion.chunk", opening=b'"delta":', closing=b"}"
        )

    def begin(self) -> bytes:
        """Return the chunks that announce the role, one for each choice."""
        return b"".join(head + b'{"role":"assistant","content":""' + self._plain_tail for head in self._heads)

    def delta(self, delta: Delta) -> bytes:
        """Return the chunk for ``delta``; empty if the client gains nothing by it. Raises ``ValueError``."""
        pieces = self.answer.add(delta)
        if not pieces:
            return b""
        block, text, logprobs = pieces[0]  # blocks are not kept in order, so a delta gives one piece at most
        written = _tool_delta(block, text) if block.kind is BlockKind.TOOL else _FIELDS[block.kind] + quote(text)
        tail = self._logprobs_tail({"content": token_logprobs(logprobs)}) if logprobs else self._plain_tail
        return self._heads[delta.choice] + written + tail

    def _ended_stream(self, choice: ChoiceAnswer, end: ChoiceEnd) -> dict[str, Any]:
        return _ended(choice.take_pending(), end)

    def _whole_choice(self, choice: ChoiceAnswer, end: ChoiceEnd) -> dict[str, Any]:
        return {"message": _message(choice), **_ended(choice.logprobs, end)}


def _tool_delta(block: Block, text: str) -> bytes:
    if not text:  # the start of the call
        return b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]' % (
            block.call,
            quote(block.call_id),
            quote(block.name),
        )
    return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]' % (block.call, quote(text))


def _ended(tokens: Sequence[TokenLogprob], end: ChoiceEnd) -> dict[str, Any]:
    reason = FinishReason.LENGTH if end.finish_reason is FinishReason.ABORT else end.finish_reason
    return {
        "logprobs": {"content": token_logprobs(tokens)} if tokens else None,
        "finish_reason": reason,
        "stop_reason": end.stop_string,
    }


def _message(choice: ChoiceAnswer) -> dict[str, Any]:
    text, reasoning, calls = choice.joined(BlockKind.TEXT), choice.joined(BlockKind.REASONING), choice.tool_calls()
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in calls
        ]
    return message
