"""What answers of OpenAI's Chat Completions and Completions have in common: a stream of chunks, each with one choice.

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk",…,"choices":[{"index":0,…}]}

Differences from vLLM 0.32:

- With ``include_usage``, every chunk but the last one has ``"usage":null``, as OpenAI's API documents.
- The finish reason comes in a chunk of its own, because it waits until the call is durable.
- A stream that failed ends with the error and without ``[DONE]``, which would mean success to a client that ignores
  the error.
- An aborted choice ends with ``length``: OpenAI's API has no ``abort``, and ``length`` is its word for "incomplete".
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from headrace.agents.gateway.answer import AnswerMeta, AnswerOptions, AnswerUsage, ChoiceEnd
from headrace.agents.gateway.framing.accumulate import ChoiceAnswer
from headrace.agents.gateway.framing.errors import ApiError, openai_object
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.json_bytes import encode, quote

_DONE = b"data: [DONE]\n\n"


class ChunkedFramer(Framer):
    """A framer of one of the two APIs."""

    _empty: bytes
    """The content of a choice's last chunk, after the opening."""

    def __init__(
        self, meta: AnswerMeta, options: AnswerOptions, *, kind: str, chunk: str, opening: bytes, closing: bytes
    ) -> None:
        """``kind``, ``chunk``: the names of a whole answer and of a chunk. ``opening``: what follows a choice's
        index; ``closing``: how its content ends.
        """
        super().__init__(meta, options, in_order=False)
        head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":' % (
            quote(meta.id),
            chunk.encode(),
            meta.created_s,
            quote(meta.model),
        )
        self._kind = kind
        self._heads = [head + b'[{"index":%d,' % index + opening for index in range(options.choices)]
        self._usage_head = head + b"[]"
        self._closing = closing
        self._tail = b"}]" + (b',"usage":null' if options.include_usage else b"") + b"}\n\n"
        self._plain_tail = closing + b',"logprobs":null,"finish_reason":null' + self._tail

    def terminal(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the last chunk of each choice, the usage if it was asked for, and ``[DONE]``."""
        events: list[bytes] = []
        for end in self.answer.in_choice_order(ends):
            ended = self._ended_stream(self.answer.choices[end.choice], end)
            events += (self._heads[end.choice], self._empty, b",", encode(ended)[1:-1], self._tail)
        if self.options.include_usage:
            events += (self._usage_head, b',"usage":', encode(_usage_object(usage)), b"}\n\n")
        return b"".join((*events, _DONE))

    def failed(self, error: ApiError) -> bytes:
        """Return the error as the last event."""
        return b"data: " + encode(openai_object(error)) + b"\n\n"

    def whole(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the accumulated answer in one piece."""
        choices = [
            {"index": end.choice, **self._whole_choice(self.answer.choices[end.choice], end)}
            for end in self.answer.in_choice_order(ends)
        ]
        return encode(
            {
                "id": self.meta.id,
                "object": self._kind,
                "created": self.meta.created_s,
                "model": self.meta.model,
                "choices": choices,
                "usage": _usage_object(usage),
            }
        )

    def _logprobs_tail(self, logprobs: dict[str, Any]) -> bytes:
        """Return the end of a chunk with log-probabilities."""
        return self._closing + b',"logprobs":' + encode(logprobs) + b',"finish_reason":null' + self._tail

    @abstractmethod
    def _ended_stream(self, choice: ChoiceAnswer, end: ChoiceEnd) -> dict[str, Any]:
        """Return the end of ``choice`` in a stream, with the log-probabilities that are still to be sent."""

    @abstractmethod
    def _whole_choice(self, choice: ChoiceAnswer, end: ChoiceEnd) -> dict[str, Any]:
        """Return ``choice`` in an answer in one piece."""


def _usage_object(usage: AnswerUsage) -> dict[str, Any]:
    """Return ``usage``; what is unknown is absent."""
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
