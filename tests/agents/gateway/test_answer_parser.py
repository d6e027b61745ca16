"""Chunks → text, reasoning and tool calls, by vLLM's parsers."""

import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.answer import (
    AnswerUsage,
    ChoiceEnd,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
    ToolArguments,
    ToolStart,
)
from headrace.agents.gateway.answer_parser import AnswerParser, Disagreement, NotParsed
from headrace.agents.gateway.answer_parsers import REMEMBERED, AnswerParsers, ParserSettings
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.generate_stream import Chunk, EngineUsage, GenerateStream
from headrace.agents.gateway.parser_requests import names_a_tool, read_by_parsers
from tests.agents.gateway.scripted_engine import Codec, FileCodec, Reply, ToyCodec, events
from tests.agents.gateway.tiny_chat_model import make_chat_tokenizer

PROMPT = array("i", [1, 5])
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "bash", "description": "Runs a command.", "parameters": SCHEMA}}
BODIES: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hi"}], "tools": [CHAT_TOOL]},
    Api.MESSAGES: {
        "max_tokens": 100,
        "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "bash", "description": "Runs a command.", "input_schema": SCHEMA}],
    },
    Api.RESPONSES: {"input": "hi", "tools": [{"type": "function", "name": "bash", "parameters": SCHEMA}]},
}
ANSWER = (
    "<think>\nthe user wants to look\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command": "naïve 漢字"}}\n</tool_call>'
)
ONE_EACH = ((("a", -0.5),), ((" b", -0.5),))
END = 2
"""The tiny model's end token."""


def mint(choice: int, index: int, name: str) -> str:
    return f"call_{choice}_{index}_{name}"


def chunks_of(reply: Reply, codec: Codec, *, with_entries: bool = False, **params: Any) -> list[Chunk]:
    body = {"token_ids": list(PROMPT), "sampling_params": params}
    stream = GenerateStream("http://engine", choices=params.get("n", 1), with_entries=with_entries)
    chunks = stream.feed(b"".join(events(body, reply, codec)))
    stream.end()
    return chunks


def fed(answer: AnswerParser, chunks: list[Chunk]) -> list[Delta | ChoiceEnd]:
    return [delta for chunk in chunks for delta in answer.feed(chunk)]


def message(deltas: list[Delta | ChoiceEnd], choice: int = 0) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Reasoning, text and tool calls (id, name, arguments) as a client adds them up."""
    reasoning = "".join(d.text for d in deltas if isinstance(d, ReasoningDelta) and d.choice == choice)
    text = "".join(d.text for d in deltas if isinstance(d, TextDelta) and d.choice == choice)
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolStart) and delta.choice == choice:
            calls[delta.index] = [delta.id, delta.name, ""]
        elif isinstance(delta, ToolArguments) and delta.choice == choice:
            calls[delta.index][2] += delta.text
    return reasoning, text, [(each[0], each[1], each[2]) for each in calls.values()]


class TestWithoutParsers:
    """Text passes as text; vLLM is not needed."""

    @pytest.fixture
    def parsers(self) -> AnswerParsers:
        return AnswerParsers(ParserSettings("/nowhere"))

    @pytest.mark.parametrize("api", Api)
    def test_text_is_text(self, parsers: AnswerParsers, api: Api) -> None:
        answer = parsers.start(api, {}, PROMPT, mint=mint)
        deltas = fed(answer, chunks_of(Reply("a <tool_call> b", chunk_tokens=2, finish_reason="length"), ToyCodec()))
        assert message(deltas)[1] == "a <tool_call> b"
        assert deltas[-1] == ChoiceEnd(0, FinishReason.LENGTH)
        assert answer.disagreements() == []
        assert answer.usage(EngineUsage(9, 3, 4)) == AnswerUsage(9, 3, 4, None)

    def test_choices_are_kept_apart_and_end_once(self, parsers: AnswerParsers) -> None:
        answer = parsers.start(Api.CHAT, {}, PROMPT, mint=mint, choices=2)
        deltas = fed(answer, chunks_of(Reply("a b c", chunk_tokens=2), ToyCodec(), n=2))
        assert [message(deltas, choice)[1] for choice in (0, 1)] == ["a b c", "a b c"]
        assert [each for each in deltas if isinstance(each, ChoiceEnd)] == [
            ChoiceEnd(0, FinishReason.STOP),
            ChoiceEnd(1, FinishReason.STOP),
        ]

    def test_the_stop_string_is_kept_and_a_stop_token_is_none(self, parsers: AnswerParsers) -> None:
        for reason, kept in (("###", "###"), (7, None)):
            answer = parsers.start(Api.CHAT, {}, PROMPT, mint=mint)
            deltas = fed(answer, chunks_of(Reply("a", stop_reason=reason), ToyCodec()))
            assert deltas[-1] == ChoiceEnd(0, FinishReason.STOP, kept)

    def test_log_probabilities_come_only_if_asked_for_and_before_their_text(self, parsers: AnswerParsers) -> None:
        chunks = chunks_of(Reply("a b"), ToyCodec(), with_entries=True)
        silent = parsers.start(Api.CHAT, {}, PROMPT, mint=mint)
        assert not [each for each in fed(silent, chunks) if isinstance(each, TokenLogprobs)]
        for top, alternatives in ((0, ((), ())), (1, ONE_EACH), (-1, ONE_EACH)):
            asked = parsers.start(Api.CHAT, {}, PROMPT, mint=mint, top_logprobs=top)
            tokens = tuple(TokenLogprob(text, -0.5, each) for text, each in zip(("a", " b"), alternatives, strict=True))
            assert fed(asked, chunks)[:2] == [TokenLogprobs(0, tokens), TextDelta(0, "a b")]

    def test_an_end_that_is_none_is_an_error(self, parsers: AnswerParsers) -> None:
        answer = parsers.start(Api.CHAT, {}, PROMPT, mint=mint)
        with pytest.raises(NotParsed, match="the engine ended an answer with 'error'"):
            fed(answer, chunks_of(Reply("a", finish_reason="error"), ToyCodec()))

    def test_tools_that_nothing_can_read_are_warned_about_once(
        self, parsers: AnswerParsers, caplog: pytest.LogCaptureFixture
    ) -> None:
        parsers.start(Api.CHAT, {"tools": []}, PROMPT, mint=mint)
        assert not caplog.records
        for _ in range(2):
            parsers.start(Api.CHAT, {"tools": [{"type": "function", "function": {"name": "x"}}]}, PROMPT, mint=mint)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "vllm.tool_parser=NAME" in caplog.text

    def test_vllm_is_not_imported(self) -> None:
        code = (
            "import sys; from headrace.agents.gateway.answer_parsers import *; "
            "AnswerParsers(ParserSettings('/nowhere')); print('vllm' in sys.modules, 'torch' in sys.modules)"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout == "False False\n"


def test_what_parsers_read_is_the_same_for_every_turn() -> None:
    first = BODIES[Api.CHAT]
    later = first | {"messages": [*first["messages"], {"role": "assistant", "content": "yes"}], "seed": 7, "user": "u"}
    assert read_by_parsers(Api.CHAT, first) == read_by_parsers(Api.CHAT, later) == {"tools": [CHAT_TOOL]}


def test_tools_that_a_conversation_adds_are_read() -> None:
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "bash"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, change]}, 7, {"content": None}]}
    assert read_by_parsers(Api.MESSAGES, body) == {"messages": [{"role": "user", "content": [change]}]}


@pytest.mark.parametrize(
    ("tool_choice", "named"),
    [
        ("auto", False),
        ("required", False),
        (None, False),
        ({"type": "any"}, False),
        ({"type": "function", "function": {"name": "bash"}}, True),
        ({"type": "function", "name": "bash"}, True),
        ({"type": "tool", "name": "bash"}, True),
    ],
)
def test_a_tool_choice_may_name_a_tool(tool_choice: Any, named: bool) -> None:
    assert names_a_tool(tool_choice) == named


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    return make_chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def parsers(model_dir: Path) -> AnswerParsers:
    """Of the Qwen3 family."""
    return AnswerParsers(ParserSettings(str(model_dir), tool_parser="hermes", reasoning_parser="qwen3"))


@pytest.fixture(scope="module")
def codec(model_dir: Path) -> FileCodec:
    return FileCodec(model_dir)


@pytest.mark.vllm
class TestWithParsers:
    """vLLM's parsers of the Qwen3 family: reasoning by ``qwen3``, tool calls by ``hermes``."""

    @pytest.mark.parametrize("chunk_tokens", [1, 5, 1000])
    @pytest.mark.parametrize("api", BODIES)
    def test_reasoning_text_and_calls_are_found(
        self, parsers: AnswerParsers, codec: FileCodec, api: Api, chunk_tokens: int
    ) -> None:
        answer = parsers.start(api, BODIES[api], PROMPT, mint=mint)
        deltas = fed(answer, chunks_of(Reply(ANSWER, chunk_tokens=chunk_tokens, ends_with=(END,)), codec))
        reasoning, text, calls = message(deltas)
        assert reasoning.strip() == "the user wants to look"
        assert text.strip() == "Let me look."
        assert calls == [
            ("call_0_0_bash", "bash", '{"command": "ls -l"}'),
            ("call_0_1_bash", "bash", '{"command": "naïve 漢字"}'),
        ]
        assert deltas[-1] == ChoiceEnd(0, FinishReason.TOOL_CALLS)
        usage = answer.usage(EngineUsage(2, 60))
        assert usage.reasoning is not None
        assert 0 < usage.reasoning < 60

    def test_answers_to_completions_are_not_parsed(self, parsers: AnswerParsers, codec: FileCodec) -> None:
        answer = parsers.start(Api.COMPLETIONS, {"prompt": "x"}, PROMPT, mint=mint)
        deltas = fed(answer, chunks_of(Reply(ANSWER), codec))
        assert message(deltas) == ("", ANSWER, [])
        assert answer.usage(EngineUsage(2, 60)).reasoning is None

    def test_hidden_reasoning_hides_its_log_probabilities(self, parsers: AnswerParsers, codec: FileCodec) -> None:
        body = BODIES[Api.CHAT] | {"include_reasoning": False}
        answer = parsers.start(Api.CHAT, body, PROMPT, mint=mint, top_logprobs=2)
        deltas = fed(answer, chunks_of(Reply(ANSWER), codec, with_entries=True))
        assert {type(each) for each in deltas} == {TextDelta, ToolStart, ToolArguments, ChoiceEnd}
        assert answer.disagreements() == []

    def test_a_prompt_that_closes_the_reasoning_is_followed_by_text(
        self, parsers: AnswerParsers, codec: FileCodec
    ) -> None:
        closed = array("i", codec.encode("<think>\n\n</think>\n\n"))
        body = {**BODIES[Api.CHAT], "chat_template_kwargs": {"enable_thinking": False}}
        deltas = fed(parsers.start(Api.CHAT, body, closed, mint=mint), chunks_of(Reply("Let me look."), codec))
        assert message(deltas) == ("", "Let me look.", [])

    def test_tokens_named_by_id_are_shown_as_text(self, parsers: AnswerParsers, codec: FileCodec) -> None:
        answer = parsers.start(Api.CHAT, {}, PROMPT, mint=mint, top_logprobs=0)
        chunks = chunks_of(Reply("look!", names_ids=True), codec, with_entries=True)
        tokens = [each for delta in fed(answer, chunks) if isinstance(delta, TokenLogprobs) for each in delta.tokens]
        assert "".join(each.token for each in tokens) == "look!"

    def test_a_named_tool_ends_with_stop(self, parsers: AnswerParsers, codec: FileCodec) -> None:
        body = BODIES[Api.CHAT] | {"tool_choice": {"type": "function", "function": {"name": "bash"}}}
        answer = parsers.start(Api.CHAT, body, PROMPT, mint=mint)
        deltas = fed(answer, chunks_of(Reply(ANSWER, chunk_tokens=3), codec))
        assert len(message(deltas)[2]) == 2
        assert deltas[-1] == ChoiceEnd(0, FinishReason.STOP)

    def test_streaming_and_whole_text_parsing_agree_or_are_counted(
        self, parsers: AnswerParsers, codec: FileCodec
    ) -> None:
        answer = parsers.start(Api.CHAT, BODIES[Api.CHAT], PROMPT, mint=mint, choices=2)
        fed(answer, chunks_of(Reply(ANSWER, chunk_tokens=3, ends_with=(END,)), codec, n=2))
        assert answer.disagreements() == []
        broken = '<think>x</think><tool_call>\n{"name": "bash", "arguments": {"command": "ls'
        answer = parsers.start(Api.CHAT, BODIES[Api.CHAT], PROMPT, mint=mint)
        deltas = fed(answer, chunks_of(Reply(broken, chunk_tokens=3, finish_reason="length"), codec))
        assert message(deltas)[2] != []
        assert answer.disagreements() == [Disagreement.TOOL_CALLS]

    def test_an_answer_that_was_aborted_is_not_compared(self, parsers: AnswerParsers, codec: FileCodec) -> None:
        answer = parsers.start(Api.CHAT, BODIES[Api.CHAT], PROMPT, mint=mint)
        fed(answer, chunks_of(Reply("<think>x", finish_reason="abort"), codec))
        assert answer.disagreements() == []

    @given(st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "{", '"name"', ": ", "x "])))
    def test_any_text_is_parsed(self, parsers: AnswerParsers, codec: FileCodec, parts: list[str]) -> None:
        answer = parsers.start(Api.CHAT, BODIES[Api.CHAT], PROMPT, mint=mint)
        deltas = fed(answer, chunks_of(Reply("".join(parts), chunk_tokens=2), codec))
        assert isinstance(deltas[-1], ChoiceEnd)
        started: set[int] = set()
        for delta in deltas:
            if isinstance(delta, ToolStart):
                assert delta.index not in started
                started.add(delta.index)
            elif isinstance(delta, ToolArguments):
                assert delta.index in started

    def test_more_calls_than_ids_can_tell_apart_are_an_error(self, parsers: AnswerParsers, codec: FileCodec) -> None:
        call = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>\n'
        answer = parsers.start(Api.CHAT, BODIES[Api.CHAT], PROMPT, mint=mint)
        with pytest.raises(NotParsed, match="more than 256 tool calls"):
            fed(answer, chunks_of(Reply(call * 257, ends_with=(END,)), codec))

    def test_requests_are_remembered_within_bounds(self, parsers: AnswerParsers) -> None:
        for number in range(REMEMBERED + 5):
            parsers.start(
                Api.CHAT, {"reasoning_effort": "low", "include_reasoning": number % 2 == 0}, PROMPT, mint=mint
            )
            parsers.start(Api.CHAT, {"chat_template_kwargs": {"number": number}}, PROMPT, mint=mint)
        assert parsers.remembered == REMEMBERED

    def test_a_request_that_vllm_finds_invalid_is_refused(self, parsers: AnswerParsers) -> None:
        with pytest.raises(NotParsed, match="does not take the request"):
            parsers.start(Api.CHAT, {"tools": [{"type": "function"}]}, PROMPT, mint=mint)

    def test_a_parser_that_vllm_does_not_know_is_an_error_at_the_start(self, model_dir: Path) -> None:
        with pytest.raises(TypeError, match="no_such"):
            AnswerParsers(ParserSettings(str(model_dir), tool_parser="no_such"))

    def test_parsers_may_be_given_alone(self, model_dir: Path, codec: FileCodec) -> None:
        tools = AnswerParsers(ParserSettings(str(model_dir), tool_parser="hermes"))
        deltas = fed(tools.start(Api.CHAT, BODIES[Api.CHAT], PROMPT, mint=mint), chunks_of(Reply(ANSWER), codec))
        assert message(deltas)[0] == ""
        assert len(message(deltas)[2]) == 2
        reasoning = AnswerParsers(ParserSettings(str(model_dir), reasoning_parser="qwen3"))
        deltas = fed(reasoning.start(Api.CHAT, {}, PROMPT, mint=mint), chunks_of(Reply(ANSWER), codec))
        assert message(deltas)[0].strip() == "the user wants to look"
        assert message(deltas)[1].count("<tool_call>") == 2
