"""Answers in the form of OpenAI's Completions API, which has only text.

    data: {"id":"cmpl-1","object":"text_completion",…,"choices":[{"index":0,"text":"Hi",…}]}

Differences from vLLM 0.32: those of :mod:`headrace.agents.gateway.framing.chunked`.
"""

from collections.abc import Sequence
from typing import Any

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    ChoiceEnd,
    Delta,
    FinishReason,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
)
from headrace.agents.gateway.framing.accumulate import BlockKind, ChoiceAnswer
from headrace.agents.gateway.framing.chunked import ChunkedFramer
from headrace.agents.gateway.framing.json_bytes import quote
from headrace.agents.gateway.framing.logprobs import completion_logprobs


class CompletionsFramer(ChunkedFramer):
    """Makes the bytes of one answer of ``/v1/completions``."""

    _empty = b'""'

    def __init__(self, meta: AnswerMeta, options: AnswerOptions) -> None:
        super().__init__(
            meta, options, kind="text_completion", chunk="text_completion", opening=b'"text":', closing=b""
        )
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
        tail = self._logprobs_tail(self._sent(delta.choice, logprobs)) if logprobs else self._plain_tail
        return self._heads[delta.choice] + quote(text) + tail

    def _ended_stream(self, choice: ChoiceAnswer, end: ChoiceEnd) -> dict[str, Any]:
        tokens = choice.take_pending()
        return _ended(self._sent(end.choice, tokens) if tokens else None, end)

    def _whole_choice(self, choice: ChoiceAnswer, end: ChoiceEnd) -> dict[str, Any]:
        logprobs = completion_logprobs(choice.logprobs, 0) if choice.logprobs else None
        return {"text": choice.joined(BlockKind.TEXT), **_ended(logprobs, end)}

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
