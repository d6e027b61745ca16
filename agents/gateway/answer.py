"""What a model answers, as values: what the engine's parser found, before it has the form of any API.

    TextDelta(0, "Let me look.")   ToolStart(0, 0, "call_AUjC…", "bash")   ToolArguments(0, 0, '{"command":"ls"}')
    ChoiceEnd(0, FinishReason.TOOL_CALLS)   AnswerUsage(prompt=3_112, completion=24, cached=3_072)

A *choice* is one of the ``n`` answers to a request, counted from 0. :mod:`headrace.agents.gateway.framing` turns these
values into the bytes of each API.
"""

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """The model ended its answer, or a stop string was found."""
    LENGTH = "length"
    """The limit of tokens was reached."""
    TOOL_CALLS = "tool_calls"
    """The model called tools."""
    ABORT = "abort"
    """The engine gave the choice up; what was sampled is incomplete."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning that precedes the text."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The start of a tool call."""

    choice: int
    index: int
    """The parser's number for the call; clients see calls numbered in the order of their starts."""
    id: str
    """Id that the client sends back with the result."""
    name: str
    """Name of the tool."""


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A piece of a tool call's arguments, which are JSON once they are complete."""

    choice: int
    index: int
    """The parser's number for the call, as in :class:`ToolStart`."""
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token with its log-probability."""

    token: str
    """The token's text."""
    logprob: float
    """Natural logarithm; minus infinity is allowed."""
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens at this position with their log-probabilities, as many as the client asked for."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities, only if the client asked for them; they come before the deltas that these tokens complete."""

    choice: int
    tokens: tuple[TokenLogprob, ...]


Delta = TextDelta | ReasoningDelta | ToolStart | ToolArguments | TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of a choice."""

    choice: int
    finish_reason: FinishReason
    stop_string: str | None = None
    """The stop string that ended it, if one did."""


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Tokens of a call, over all choices."""

    prompt: int
    completion: int
    cached: int | None = None
    """How many of ``prompt`` the engine had in its prefix cache; ``None`` if unknown."""
    reasoning: int | None = None
    """How many of ``completion`` are reasoning; ``None`` if unknown."""


@dataclass(frozen=True, slots=True)
class AnswerMeta:
    """What is known when an answer begins."""

    id: str
    """Id of the answer in the client's API: ``chatcmpl-…``, ``cmpl-…``, ``resp_…`` or ``msg_…``."""
    created_s: int
    """Unix time in seconds."""
    model: str
    """Name of the model as the client knows it."""
    prompt_tokens: int = 0
    """Length of the prompt."""
    signature: str = ""
    """Messages API: the signature of the answer's thinking blocks."""
    encrypted_content: str | None = None
    """Responses API: the ``encrypted_content`` of the answer's reasoning items, if the client asked to include it."""


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the request asked of the answer's form."""

    choices: int = 1
    """Number of choices (``n``); at least 1."""
    include_usage: bool = False
    """Chat Completions and Completions: whether a stream ends with the usage (``stream_options.include_usage``)."""
    parallel_tool_calls: bool = True
    """Whether an answer may have several tool calls; if not, only the first one is delivered."""

    def __post_init__(self) -> None:
        if self.choices < 1:
            raise ValueError(f"an answer of {self.choices} choices: expected at least 1")


_ENGINE_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.ABORT,
}


def finish_reason_of(engine: str, *, has_calls: bool, is_tool_named: bool = False) -> FinishReason:
    """Return why a choice ended, given what the engine said.

    Args:
        engine: ``finish_reason`` of vLLM's answer.
        has_calls: Whether the choice has tool calls.
        is_tool_named: Whether the request named the tool to be called; such a call ends with ``stop``.

    Raises:
        ValueError: For ``error`` and unknown reasons: the answer failed.
    """
    reason = _ENGINE_REASONS.get(engine)
    if reason is None:
        raise ValueError(f"the engine ended an answer with {engine!r}: report a failure to the client")
    return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and has_calls and not is_tool_named else reason
