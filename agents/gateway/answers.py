"""One answer on its way: the engine's chunks → deltas → the API's bytes, and what is kept of it.

answer = AnswerInProgress(framer, parser, choices)
send(answer.feed(chunks))            bytes of a stream
answers, usage = answer.ended(…)     for the log
send(answer.last(…))                 once the log has them
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    AnswerUsage,
    ChoiceEnd,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolStart,
    finish_reason_of,
)
from headrace.agents.gateway.answer_parser import AnswerParser
from headrace.agents.gateway.canonical import Api, Message, MessageRole, call_of
from headrace.agents.gateway.framing.chat import ChatFramer
from headrace.agents.gateway.framing.completions import CompletionsFramer
from headrace.agents.gateway.framing.delivered import Delivered
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.messages import MessagesFramer
from headrace.agents.gateway.framing.responses import ResponsesFramer
from headrace.agents.gateway.generate_stream import Chunk
from headrace.agents.gateway.nodes import Answer, Node
from headrace.agents.gateway.record import ABORTED
from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import VersionSpan


@dataclass(slots=True)
class _Sampled:
    """What the engine sampled for one choice so far; axis legend: S tokens."""

    token_ids: IntArray = field(default_factory=lambda: array("i"))
    """(S,) int32."""
    logprobs: FloatArray = field(default_factory=lambda: array("f"))
    """(S,) float32."""
    spans: tuple[VersionSpan, ...] = ()
    finish_reason: str = ABORTED
    ends_with_stop_token: bool = False

    def add(self, chunk: Chunk) -> None:
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        if chunk.finish_reason is not None:
            self.spans, self.finish_reason = chunk.spans, chunk.finish_reason
            self.ends_with_stop_token = chunk.finish_reason == "stop" and not isinstance(chunk.stop_reason, str)


class AnswerInProgress:
    """An answer while it is sampled."""

    def __init__(self, framer: Framer, parser: AnswerParser, *, streams: bool) -> None:
        """``streams``: whether the client receives a stream."""
        self.prompt_ids: IntArray | None = None
        """int32: the prompt as the engine reports it, after the first chunk."""
        self._framer = framer
        self._parser = parser
        self._streams = streams
        self._sampled = [_Sampled() for _ in range(framer.options.choices)]
        self._ends: list[ChoiceEnd] = []

    @property
    def has_tokens(self) -> bool:
        """Whether anything was sampled."""
        return any(each.token_ids for each in self._sampled)

    def feed(self, chunks: Sequence[Chunk]) -> bytes:
        """Take ``chunks``, and return what they add to a stream. Raises ``NotParsed``."""
        pieces: list[bytes] = []
        for chunk in chunks:
            if chunk.prompt_ids is not None:
                self.prompt_ids = chunk.prompt_ids
            self._sampled[chunk.choice].add(chunk)
            for delta in self._parser.feed(chunk):
                if isinstance(delta, ChoiceEnd):
                    self._ends.append(delta)
                elif self._streams:
                    pieces.append(self._framer.delta(delta))
                else:
                    self._framer.answer.add(delta)
        return b"".join(pieces)

    def answers(self, *, aborted: bool = False) -> list[Answer]:
        """Return what is recorded, by choice. ``aborted``: the answer is given up, and does not reach the client."""
        return [
            Answer(
                message_of(self._framer.delivered(choice), with_calls=not aborted),
                sampled.token_ids,
                sampled.logprobs,
                () if aborted else sampled.spans,
                ABORTED if aborted else sampled.finish_reason,
                sampled.ends_with_stop_token,
                delivered=False if aborted else None,
            )
            for choice, sampled in enumerate(self._sampled)
        ]

    def last(self, usage: AnswerUsage) -> bytes:
        """Return the end of a stream, or the whole answer."""
        if self._streams:
            return self._framer.terminal(self._ends, usage)
        return self._framer.whole(self._ends, usage)

    def whole(self, usage: AnswerUsage) -> bytes:
        """Return the whole answer."""
        return self._framer.whole(self._ends, usage)


def message_of(delivered: Delivered, *, with_calls: bool = True) -> Message:
    """Return the message that the client will send back. ``with_calls``: whether its tool calls are complete."""
    calls = tuple(
        call_of(call.call_id, call.name, call.arguments, f"tool call {position}")
        for position, call in enumerate(delivered.calls if with_calls else ())
    )
    reasoning = "\n".join(delivered.reasoning)
    return Message.of(MessageRole.ASSISTANT, delivered.texts, calls, reasoning=reasoning, echoed=delivered.echoed)


def framer_of(api: Api, meta: AnswerMeta, options: AnswerOptions, body: dict[str, Any]) -> Framer:
    """Return the framer of an answer to ``body``. Raises ``ValueError`` for options that the API lacks."""
    match api:
        case Api.CHAT:
            return ChatFramer(meta, options)
        case Api.COMPLETIONS:
            return CompletionsFramer(meta, options)
        case Api.RESPONSES:
            return ResponsesFramer(meta, options, body)
        case Api.MESSAGES:
            return MessagesFramer(meta, options)
    assert_never(api)


def options_of(api: Api, body: dict[str, Any], choices: int) -> AnswerOptions:
    """Return what ``body`` asks of its answer's form."""
    stream_options = body.get("stream_options")
    tool_choice = body.get("tool_choice")
    only_one = body.get("parallel_tool_calls") is False
    if api is Api.MESSAGES:
        only_one = isinstance(tool_choice, dict) and tool_choice.get("disable_parallel_tool_use") is True
    return AnswerOptions(
        choices=choices,
        include_usage=isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
        parallel_tool_calls=not only_one,
    )


def replayed(framer: Framer, nodes: Sequence[Node], *, streams: bool) -> tuple[bytes, list[ChoiceEnd], AnswerUsage]:
    """Return the known answers ``nodes``, one per choice of ``framer``, as if they had just been sampled: the bytes,
    the ends of the choices, and the tokens."""
    pieces = [framer.begin()] if streams else []
    ends = []
    for choice, node in enumerate(nodes):
        message = node.answer.message
        for delta in _deltas(choice, message):
            if streams:
                pieces.append(framer.delta(delta))
            else:
                framer.answer.add(delta)
        reason = finish_reason_of(node.answer.finish_reason, has_calls=bool(message.calls))
        ends.append(ChoiceEnd(choice, reason))
    sampled = [len(node.answer.sampled_ids) for node in nodes]
    usage = AnswerUsage(nodes[0].length - sampled[0], sum(sampled))
    last = framer.terminal(ends, usage) if streams else framer.whole(ends, usage)
    return b"".join((*pieces, last)), ends, usage


def _deltas(choice: int, message: Message) -> list[Delta]:
    deltas: list[Delta] = [ReasoningDelta(choice, message.reasoning)] if message.reasoning else []
    deltas += [TextDelta(choice, text) for text in message.texts]
    for position, call in enumerate(message.calls):
        deltas.append(ToolStart(choice, position, call.call_id, call.tool))
        deltas.append(ToolArguments(choice, position, call.arguments if call.raw is None else call.raw))
    return deltas
