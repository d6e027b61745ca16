"""Answers for the tests: builders, and strategies for streams of deltas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    AnswerUsage,
    ChoiceEnd,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolStart,
)
from headrace.agents.gateway.framing.chat import ChatFramer
from headrace.agents.gateway.framing.completions import CompletionsFramer
from headrace.agents.gateway.framing.delivered import Delivered
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.messages import MessagesFramer
from headrace.agents.gateway.framing.responses import ResponsesFramer
from tests.agents.gateway.framing import clients

META = AnswerMeta("resp_1", 1_790_000_000, "policy", prompt_tokens=12, signature="sig_x", encrypted_content="enc_x")
USAGE = AnswerUsage(prompt=12, completion=7, cached=8, reasoning=3)
LS = '{"command":"ls"}'


@dataclass(frozen=True)
class Api:
    """An API: how its framer is made, and how its official client reads."""

    name: str
    make: Callable[[AnswerOptions], Framer]
    read_stream: Callable[[bytes], list[Delivered]]
    read_whole: Callable[[bytes], list[Delivered]]
    max_choices: int = 1
    only_text: bool = False


CHAT = Api("chat", lambda options: ChatFramer(META, options), clients.read_chat_stream, clients.read_chat, 64)
COMPLETIONS = Api(
    "completions",
    lambda options: CompletionsFramer(META, options),
    clients.read_completion_stream,
    clients.read_completion,
    64,
    only_text=True,
)
RESPONSES = Api(
    "responses",
    lambda options: ResponsesFramer(META, options, {}),
    clients.read_response_stream,
    clients.read_response,
)
MESSAGES = Api(
    "messages", lambda options: MessagesFramer(META, options), clients.read_message_stream, clients.read_message
)
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def bash(index: int = 0, *arguments: str, choice: int = 0) -> list[Delta]:
    """A call of the tool ``bash`` with ``arguments`` in pieces."""
    pieces: list[Delta] = [ToolArguments(choice, index, piece) for piece in arguments]
    return [ToolStart(choice, index, f"call_{index}", "bash"), *pieces]


def ended(reason: FinishReason = FinishReason.STOP, stop_string: str | None = None) -> list[ChoiceEnd]:
    return [ChoiceEnd(0, reason, stop_string)]


def streamed(
    framer: Framer, deltas: Sequence[Delta], ends: Sequence[ChoiceEnd] | None = None, usage: AnswerUsage = USAGE
) -> bytes:
    """The whole stream; every choice ends with ``stop`` if ``ends`` are not given."""
    begun = framer.begin() + b"".join([framer.delta(delta) for delta in deltas])
    return begun + framer.terminal(ends or stops(framer), usage)


def whole(framer: Framer, deltas: Sequence[Delta], ends: Sequence[ChoiceEnd] | None = None) -> bytes:
    for delta in deltas:
        framer.answer.add(delta)
    return framer.whole(ends or stops(framer), USAGE)


def stops(framer: Framer) -> list[ChoiceEnd]:
    return [ChoiceEnd(choice, FinishReason.STOP) for choice in range(framer.options.choices)]


odd_characters = st.sampled_from("aé日😀\ud83d\ude00\x00\x1f\x7f\x85\u2028\u2029\ufeff\n\r\\\"'</&")
texts = st.text(st.one_of(odd_characters, st.characters(codec="utf-8")), max_size=12)
"""Texts with what breaks encoders: lone surrogates, control characters, line separators; also empty."""


@st.composite
def argument_pieces(draw: st.DrawFn) -> list[str]:
    """The text of a JSON object, perhaps cut short, in pieces."""
    value: Any = draw(
        st.dictionaries(texts.map(clean), st.one_of(texts.map(clean), st.integers(), st.none()), max_size=3)
    )
    text = clients.json.dumps(value, ensure_ascii=draw(st.booleans()))
    text = text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def clean(text: str) -> str:
    return text.encode("utf-8", "ignore").decode()


@st.composite
def blocks(draw: st.DrawFn, choice: int, call: int) -> list[Delta]:
    """A text, a reasoning or a tool call, in pieces."""
    kind = draw(st.sampled_from(("text", "reasoning", "call")))
    if kind == "call":
        return bash(call, *draw(argument_pieces()), choice=choice)
    make = TextDelta if kind == "text" else ReasoningDelta
    return [make(choice, text) for text in draw(st.lists(texts, min_size=1, max_size=4))]


@st.composite
def orderly(draw: st.DrawFn, choice: int = 0) -> list[Delta]:
    """A stream of one choice in which nothing comes inside a tool call."""
    return [delta for number in range(draw(st.integers(0, 5))) for delta in draw(blocks(choice, number))]


def chaotic(choices: int) -> st.SearchStrategy[list[Delta]]:
    """Any deltas of ``choices`` in any order: arguments before their call, calls that start twice."""
    choice, index = st.integers(0, choices - 1), st.integers(0, 3)
    return st.lists(
        st.one_of(
            st.builds(TextDelta, choice, texts),
            st.builds(ReasoningDelta, choice, texts),
            st.builds(lambda choice, index: ToolStart(choice, index, f"call_{index}", "bash"), choice, index),
            st.builds(ToolArguments, choice, index, texts),
        ),
        max_size=24,
    )


@st.composite
def recut(draw: st.DrawFn, deltas: Sequence[Delta]) -> list[Delta]:
    """``deltas`` with each text cut at other places."""
    found: list[Delta] = []
    for delta in deltas:
        if not isinstance(delta, TextDelta | ReasoningDelta | ToolArguments):
            found.append(delta)
            continue
        place = draw(st.integers(0, len(delta.text)))
        found += (replace(delta, text=delta.text[:place]), replace(delta, text=delta.text[place:]))
    return found
