"""Answers in the form of OpenAI's Completions API, which has only text.

    data: {"id":"cmpl-1","object":"text_completion",…,"choices":[{"index":0,"text":"Hi",…}]}

Differences from vLLM 0.32: those of :mod:`headrace.agents.gateway.framing.chat` about usage, the end of a stream and
aborted choices.
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
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
)
from headrace.agents.gateway.framing.accumulate import BlockKind
from headrace.agents.gateway.framing.chat import DONE, chunk_head, usage_object
from headrace.agents.gateway.framing.errors import ApiError, openai_object
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.json_bytes import encode, quote
from headrace.agents.gateway.framing.logprobs import completion_logprobs


class CompletionsFramer(Framer):
    """Makes the bytes of one answer of ``/v1/completions``."""

    def __init__(self, meta: AnswerMeta, options: AnswerOptions) -> None:
        super().__init__(meta, options, in_order=False)
        head = chunk_head(meta, b"text_completion")
        self._heads = [head + b'[{"index":%d,"text":' % index for index in range(options.choices)]
        self._usage_head = head + b"[]"
        self._tail = b"}]" + (b',"usage":null' if options.include_usage else b"") + b"}\n\n"
        self._plain_tail = b',"logprobs":null,"finish_reason":null' + self._tail
        self._offsets = [0] * options.choices
        """Characters of each choice's tokens whose log-probabilities were sent."""

    def delta(self, delta: Delta) -> bytes:
        """Return the chunk for ``delta``; empty if the client gains nothing by it.

        Raises ``ValueError`` also for reasoning and tool calls, which this API cannot express.
        """
        if not isinstance(delta, TextDelta | TokenLogprobs):
            raise ValueError(f"{type(delta).__name__} in a completion: the Completions API has only text")
        pieces = self.answer.add(delta)
        if not pieces:
            return b""
        _, text, logprobs = pieces[0]
        if not logprobs:
            return self._heads[delta.choice] + quote(text) + self._plain_tail
        written = encode(self._sent(delta.choice, logprobs))
        return b"%b%b,%b%b" % (
            self._heads[delta.choice],
            quote(text),
            b'"logprobs":' + written + b',"finish_reason":null',
            self._tail,
        )

    def terminal(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the last chunk of each choice, the usage if it was asked for, and ``[DONE]``."""
        events: list[bytes] = []
        for end in self.answer.in_choice_order(ends):
            tokens = self.answer.choices[end.choice].take_pending()
            ended = _ended(self._sent(end.choice, tokens) if tokens else None, end)
            events += (self._heads[end.choice], b'"",', encode(ended)[1:-1], self._tail)
        if self.options.include_usage:
            events += (self._usage_head, b',"usage":', encode(usage_object(usage)), b"}\n\n")
        return b"".join((*events, DONE))

    def failed(self, error: ApiError) -> bytes:
        """Return the error as the last event."""
        return b"data: " + encode(openai_object(error)) + b"\n\n"

    def whole(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return a text completion."""
        choices = []
        for end in self.answer.in_choice_order(ends):
            choice = self.answer.choices[end.choice]
            logprobs = completion_logprobs(choice.logprobs, 0) if choice.logprobs else None
            choices.append({"index": end.choice, "text": choice.joined(BlockKind.TEXT), **_ended(logprobs, end)})
        return encode(
            {
                "id": self.meta.id,
                "object": "text_completion",
                "created": self.meta.created_s,
                "model": self.meta.model,
                "choices": choices,
                "usage": usage_object(usage),
            }
        )

    def _sent(self, choice: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        written = completion_logprobs(tokens, self._offsets[choice])
        self._offsets[choice] += sum(len(each.token) for each in tokens)
        return written


def _ended(logprobs: dict[str, Any] | None, end: ChoiceEnd) -> dict[str, Any]:
    is_cut = end.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)
    return {
        "logprobs": logprobs,
        "finish_reason": FinishReason.LENGTH if is_cut else FinishReason.STOP,
        "stop_reason": end.stop_string,
    }
