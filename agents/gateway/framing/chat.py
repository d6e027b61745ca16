"""Answers in the form of OpenAI's Chat Completions API.

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk",…,"choices":[{"index":0,"delta":{"content":"Hi"},…}]}

As in vLLM 0.32, reasoning is ``reasoning`` (not ``reasoning_content``), and a choice that ended has a ``stop_reason``,
the stop string that was found. Differences from vLLM 0.32:

- With ``include_usage``, every chunk but the last one has ``"usage":null``, as OpenAI's API documents.
- The finish reason comes in a chunk of its own, because it waits until the call is durable.
- A stream that failed ends with the error and without ``[DONE]``, which would mean success to a client that ignores
  the error.
- Tool calls are numbered from 0 in the order of their starts, whatever the parser's numbers are.
- An aborted choice ends with ``length``: OpenAI's API has no ``abort``, and ``length`` is its word for "incomplete".
- Without tool calls, an answer in one piece has ``content`` ``""`` rather than ``null`` if the text is empty.
"""

from collections.abc import Sequence
from typing import Any

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    AnswerUsage,
    ChoiceEnd,
    Delta,
    FinishReason,
    TokenLogprob,
)
from headrace.agents.gateway.framing.accumulate import Block, BlockKind, ChoiceAnswer
from headrace.agents.gateway.framing.errors import ApiError, openai_object
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.json_bytes import encode, quote
from headrace.agents.gateway.framing.logprobs import token_logprobs

DONE = b"data: [DONE]\n\n"
"""The last event of a stream of Chat Completions and of Completions."""

_FIELDS = {BlockKind.TEXT: b'{"content":', BlockKind.REASONING: b'{"reasoning":'}


class ChatFramer(Framer):
    """Makes the bytes of one answer of ``/v1/chat/completions``."""

    def __init__(self, meta: AnswerMeta, options: AnswerOptions) -> None:
        super().__init__(meta, options, in_order=False)
        head = chunk_head(meta, b"chat.completion.chunk")
        self._heads = [head + b'[{"index":%d,"delta":' % index for index in range(options.choices)]
        self._usage_head = head + b"[]"
        self._tail = b"}]" + (b',"usage":null' if options.include_usage else b"") + b"}\n\n"
        self._plain_tail = b'},"logprobs":null,"finish_reason":null' + self._tail

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
        return self._heads[delta.choice] + written + (self._logprobs_tail(logprobs) if logprobs else self._plain_tail)

    def terminal(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the last chunk of each choice, the usage if it was asked for, and ``[DONE]``."""
        events: list[bytes] = []
        for end in self.answer.in_choice_order(ends):
            tokens = self.answer.choices[end.choice].take_pending()
            events += (self._heads[end.choice], b"{},", encode(_ended(tokens, end))[1:-1], self._tail)
        if self.options.include_usage:
            events += (self._usage_head, b',"usage":', encode(usage_object(usage)), b"}\n\n")
        return b"".join((*events, DONE))

    def failed(self, error: ApiError) -> bytes:
        """Return the error as the last event."""
        return b"data: " + encode(openai_object(error)) + b"\n\n"

    def whole(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return a chat completion."""
        choices = []
        for end in self.answer.in_choice_order(ends):
            choice = self.answer.choices[end.choice]
            choices.append({"index": end.choice, "message": _message(choice), **_ended(choice.logprobs, end)})
        return encode(
            {
                "id": self.meta.id,
                "object": "chat.completion",
                "created": self.meta.created_s,
                "model": self.meta.model,
                "choices": choices,
                "usage": usage_object(usage),
            }
        )

    def _logprobs_tail(self, tokens: Sequence[TokenLogprob]) -> bytes:
        return b'},"logprobs":' + encode({"content": token_logprobs(tokens)}) + b',"finish_reason":null' + self._tail


def chunk_head(meta: AnswerMeta, kind: bytes) -> bytes:
    """Return the start of a chunk of Chat Completions or Completions, up to its choices."""
    return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":' % (
        quote(meta.id),
        kind,
        meta.created_s,
        quote(meta.model),
    )


def usage_object(usage: AnswerUsage) -> dict[str, Any]:
    """Return ``usage`` as Chat Completions and Completions write it; what is unknown is absent."""
    written: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
    if usage.cached is not None:
        written["prompt_tokens_details"] = {"cached_tokens": usage.cached}
    if usage.reasoning is not None:
        written["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return written


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
