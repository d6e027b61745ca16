"""One answer: sampled tokens → text, reasoning and tool calls, by vLLM's own parsers.

    answer = parsers.start(Api.CHAT, body, prompt_ids, mint=mint)     # answer_parsers.py
    for chunk in chunks:
        deltas = answer.feed(chunk)     # [ReasoningDelta(0, "The user…"), ToolStart(0, 0, "call_7f…", "bash"), …]

Nothing is parsed by hand, and nothing that a parser finds is corrected. vLLM's streaming parsers may find something
else than its parsers of whole texts (vllm#47137, #32152, #28806): what was streamed has been delivered, so it counts,
and :meth:`AnswerParser.disagreements` says where the two differ.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headrace.agents.gateway.answer import (
    AnswerUsage,
    ChoiceEnd,
    Delta,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
    ToolArguments,
    ToolStart,
    finish_reason_of,
)
from headrace.agents.gateway.canonical import MAX_CALLS
from headrace.agents.gateway.generate_stream import Chunk, EngineUsage, TokenEntry
from headrace.schemas.arrays import IntArray

Mint = Callable[[int, int, str], str]
"""Makes the id of a tool call: choice, the parser's number for the call, name of the tool → id."""


class NotParsed(ValueError):
    """vLLM's parser failed on an answer; its tokens are known all the same."""


class Disagreement(StrEnum):
    """Where streaming and whole-text parsing of one choice differ."""

    REASONING = "reasoning"
    TEXT = "text"
    TOOL_CALLS = "tool_calls"
    FAILED = "failed"
    """The whole text cannot be parsed at all."""


@dataclass(frozen=True, slots=True)
class Parsing:
    """How an answer is parsed."""

    mint: Mint
    """Makes the ids of tool calls."""
    new: Callable[[], Any] | None = None
    """Makes a parser of vLLM for one choice; ``None``: text passes as text."""
    request: Any = None
    """The client's request in vLLM's form."""
    text_of: Callable[[str], str] = str
    """Text of a token as the engine names it."""
    has_tool_parser: bool = False
    """Whether tool calls are parsed."""
    has_reasoning_parser: bool = False
    """Whether reasoning is parsed."""
    is_tool_named: bool = False
    """Whether the request names the tool to be called."""
    top_logprobs: int | None = None
    """How many alternatives per token the client asked for; ``None``: it asked for no log-probabilities."""


@dataclass(slots=True)
class _Found:
    """What was found in one choice so far."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, tuple[str, list[str]]] = field(default_factory=dict)
    raw: list[str] = field(default_factory=list)
    token_ids: IntArray = field(default_factory=lambda: array("i"))
    is_whole: bool = False


class AnswerParser:
    """The parser of one answer: feed it the engine's chunks as they arrive."""

    def __init__(self, parsing: Parsing, prompt_ids: Sequence[int], choices: int) -> None:
        """``prompt_ids``: from them parsers see whether the reasoning is open. ``choices``: number of answers."""
        self._parsing = parsing
        self._prompt_ids = prompt_ids
        self._parsers: list[Any] = [None if parsing.new is None else parsing.new() for _ in range(choices)]
        self._found = [_Found() for _ in range(choices)]
        hides_reasoning = parsing.request is not None and not parsing.request.include_reasoning
        # Log-probabilities would show the hidden reasoning.
        self._top = None if hides_reasoning else parsing.top_logprobs

    def feed(self, chunk: Chunk) -> list[Delta | ChoiceEnd]:
        """Return what ``chunk`` adds to its choice; the last chunk of a choice ends with :class:`ChoiceEnd`.

        Raises:
            NotParsed: If vLLM's parser fails or finds too many tool calls, or the engine names an end that is none.
        """
        choice, found = chunk.choice, self._found[chunk.choice]
        found.token_ids += chunk.token_ids
        found.is_whole = chunk.finish_reason in ("stop", "length")
        deltas: list[Delta | ChoiceEnd] = []
        if self._top is not None and chunk.entries:
            deltas.append(TokenLogprobs(choice, tuple(self._logprob(entry) for entry in chunk.entries)))
        if (parser := self._parsers[choice]) is None:
            if chunk.text:
                found.text.append(chunk.text)
                deltas.append(TextDelta(choice, chunk.text))
        else:
            found.raw.append(chunk.text)
            try:
                message = parser.parse_delta(
                    chunk.text,
                    chunk.token_ids.tolist(),
                    self._parsing.request,
                    self._prompt_ids,
                    finished=chunk.finish_reason is not None,
                )
            except Exception as error:
                raise NotParsed(f"vLLM's parser failed on an answer: {error!r}") from error
            if message is not None:
                self._take(message, choice, found, deltas)
        if chunk.finish_reason is not None:
            deltas.append(self._end(chunk, found))
        return deltas

    def usage(self, counted: EngineUsage) -> AnswerUsage:
        """Return the tokens of the call, over all choices, given what the engine ``counted``.

        Raises :class:`NotParsed` if vLLM's parser cannot count the reasoning.
        """
        reasoning = None
        if self._parsing.has_reasoning_parser and self._parsing.request is not None:
            each = zip(self._parsers, self._found, strict=True)
            try:
                reasoning = sum(parser.count_reasoning_tokens(found.token_ids.tolist()) for parser, found in each)
            except Exception as error:
                raise NotParsed(f"vLLM's parser cannot count the reasoning: {error!r}") from error
        return AnswerUsage(counted.prompt, counted.completion, counted.cached, reasoning)

    def disagreements(self) -> list[Disagreement]:
        """Return where parsing the whole texts finds something else than was streamed: at most one per choice.

        To be called after the answer has been delivered, to be counted: it costs as much again as streaming in a few
        large chunks. Choices that did not end, or were aborted, are not compared.
        """
        return [each for choice in range(len(self._found)) if (each := self._disagreement(choice)) is not None]

    def _take(self, message: Any, choice: int, found: _Found, deltas: list[Delta | ChoiceEnd]) -> None:
        """Append the parts of vLLM's ``DeltaMessage``."""
        if message.reasoning:
            found.reasoning.append(message.reasoning)
            deltas.append(ReasoningDelta(choice, message.reasoning))
        if message.content:
            found.text.append(message.content)
            deltas.append(TextDelta(choice, message.content))
        for call in message.tool_calls or ():
            function = call.function
            if function is None:
                continue
            if call.index not in found.calls:
                if not function.name:
                    continue  # arguments of a call that the parser never started: no client could place them
                if call.index >= MAX_CALLS:
                    raise NotParsed(f"the answer has more than {MAX_CALLS} tool calls")
                found.calls[call.index] = (function.name, [])
                call_id = self._parsing.mint(choice, call.index, function.name)
                deltas.append(ToolStart(choice, call.index, call_id, function.name))
            if function.arguments:
                found.calls[call.index][1].append(function.arguments)
                deltas.append(ToolArguments(choice, call.index, function.arguments))

    def _end(self, chunk: Chunk, found: _Found) -> ChoiceEnd:
        try:
            reason = finish_reason_of(
                str(chunk.finish_reason), has_calls=bool(found.calls), is_tool_named=self._parsing.is_tool_named
            )
        except ValueError as error:
            raise NotParsed(str(error)) from error
        stop = chunk.stop_reason if isinstance(chunk.stop_reason, str) else None
        return ChoiceEnd(chunk.choice, reason, stop)

    def _logprob(self, entry: TokenEntry) -> TokenLogprob:
        named = self._parsing.text_of
        asked = entry.top_logprobs if self._top == -1 else entry.top_logprobs[: self._top]
        top = tuple((named(each.token), each.logprob) for each in asked)
        return TokenLogprob(named(entry.token), entry.logprob, top)

    def _disagreement(self, choice: int) -> Disagreement | None:
        found = self._found[choice]
        if self._parsing.new is None or not found.is_whole:
            return None
        try:
            parser = self._parsing.new()
            parser.set_prompt_token_ids(self._prompt_ids)
            reasoning, text, calls = parser.parse(
                "".join(found.raw),
                self._parsing.request,
                enable_auto_tools=self._parsing.has_tool_parser,
                model_output_token_ids=found.token_ids.tolist(),
            )
        except Exception:  # noqa: BLE001 - a parser of vLLM may fail in any way, which is what is to be counted
            return Disagreement.FAILED
        if self._parsing.request.include_reasoning and (reasoning or "") != "".join(found.reasoning):
            return Disagreement.REASONING
        streamed = [(name, _parsed("".join(arguments))) for _, (name, arguments) in sorted(found.calls.items())]
        if [(call.name, _parsed(call.arguments)) for call in calls or ()] != streamed:
            return Disagreement.TOOL_CALLS
        return None if (text or "") == "".join(found.text) else Disagreement.TEXT


def _parsed(arguments: str) -> Any:
    """Arguments that differ in spaces only are equal; others that are no JSON are compared as text."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
