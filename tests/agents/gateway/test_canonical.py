"""Canonical messages: different ones have different digests, and what clients change has no influence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.canonical import (
    MAX_DEPTH,
    MAX_MESSAGES,
    Api,
    BadRequest,
    Call,
    CanonicalRequest,
    Message,
    MessageRole,
    assistant,
    call_of,
    canonical_json,
    digest_of,
    digest_of_json,
    to_chat,
)
from headrace.agents.gateway.record import tool_called
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ToolCalled
from headrace.schemas.wire import decode, encode

texts = st.text(max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
call_values = st.builds(Call, st.sampled_from(["a", "b"]), texts, texts, st.booleans())
messages = st.builds(
    Message.of,
    st.sampled_from(MessageRole),
    st.lists(texts, max_size=3).map(tuple),
    st.lists(call_values, max_size=2).map(tuple),
    answers=st.none() | st.integers(0, 3) | texts,
    failed=st.booleans(),
    reasoning=texts,
)


def identifying(message: Message) -> object:
    """All that the digest covers."""
    calls = [(call.tool, call.is_json, call.arguments) for call in message.calls]
    answers = None if message.answers is None else (type(message.answers), message.answers, message.failed)
    blocks = [text for text in message.texts if message.role is not MessageRole.ASSISTANT or not text.isspace()]
    return message.role, blocks, calls, answers


@given(messages, messages)
def test_messages_have_equal_digests_exactly_if_they_say_the_same(left: Message, right: Message) -> None:
    assert (left.digest == right.digest) == (identifying(left) == identifying(right))


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_the_encoding_of_pieces_is_injective(left: list[bytes], right: list[bytes]) -> None:
    assert (digest_of(*left) == digest_of(*right)) == (left == right)


def test_pieces_of_a_result_are_not_those_of_a_call() -> None:
    call = Message.of(MessageRole.TOOL, (), (Call("x", "id", "ok", is_json=False),))
    result = Message.of(MessageRole.TOOL, (), answers="text")
    assert call.digest != result.digest


@given(values)
def test_the_order_of_keys_is_irrelevant(value: Any) -> None:
    def turned(each: Any) -> Any:
        if isinstance(each, dict):
            return {name: turned(each[name]) for name in reversed(each)}
        return [turned(one) for one in each] if isinstance(each, list) else each

    assert canonical_json(value, "x") == canonical_json(turned(value), "x")


@given(st.dictionaries(texts, values, max_size=3))
def test_arguments_are_the_same_as_text_and_as_an_object(arguments: dict[str, Any]) -> None:
    as_text = call_of("c", "t", json.dumps(arguments, indent=2, ensure_ascii=True), "x")
    assert (as_text.arguments, as_text.is_json) == (call_of("c", "t", arguments, "x").arguments, True)


@given(values, values)
def test_canonical_json_tells_values_apart(left: Any, right: Any) -> None:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, bool) or isinstance(b, bool):
            return a is b
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(same, a, b))
        return bool(a == b)

    assert (canonical_json(left, "x") == canonical_json(right, "x")) == same(left, right)


@pytest.mark.parametrize(
    ("python", "javascript"), [("1.0", "1"), ("-0.0", "0"), ("1e3", "1000"), ("1e20", "1" + "0" * 20)]
)
def test_whole_numbers_are_as_javascript_writes_them(python: str, javascript: str) -> None:
    assert call_of("c", "t", f'{{"n": {python}}}', "x").arguments == f'{{"n":{javascript}}}'


@pytest.mark.parametrize("arguments", ["", None, "{}", {}, " { } "])
def test_absent_arguments_are_an_empty_object(arguments: Any) -> None:
    assert call_of("c", "t", arguments, "x").arguments == "{}"


@pytest.mark.parametrize("text", ["{", "ls -l", '{"a": NaN}', "[1,", '{"a": 1} x', "\ud800"])
def test_arguments_that_are_not_json_stay_text(text: str) -> None:
    call = call_of("c", "t", text, "x")
    assert (call.is_json, call.arguments, call.value) == (False, text, {"raw": text})


def test_arguments_that_are_no_object_are_raw_in_events() -> None:
    assert call_of("c", "t", "[1, 2]", "x").value == {"raw": "[1,2]"}


@pytest.mark.parametrize("digits", [309, 310, 4_300, 4_301, 100_000])
def test_a_number_that_no_event_can_hold_is_raw_in_events(digits: int) -> None:
    text = json.dumps({"n": "#"}).replace('"#"', "9" * digits)
    fact = tool_called(call_of("c", "t", text, "x"), masked=False)
    envelope = Envelope("id-1", fact.TYPE, "/agents/gateway/1", 1_000, "trajectory-1", 3)
    message = encode(fact, key="trajectory-1", envelope=envelope)
    _, read = decode(message.headers, message.value)
    assert isinstance(read, ToolCalled)
    assert list(read.arguments) == ["raw"]
    assert read.arguments["raw"].replace(" ", "") == text.replace(" ", "")


def test_deep_arguments_are_refused_and_deep_text_stays_text() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(BadRequest, match=r"messages\[2\].*64 levels"):
        call_of("c", "t", {"a": deep}, "messages[2]")
    assert not call_of("c", "t", json.dumps(deep), "x").is_json
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadRequest, match="tools"):
        digest_of_json(deep, "tools")


def test_half_of_a_surrogate_pair_is_refused_where_it_would_reach_an_event() -> None:
    with pytest.raises(UnicodeEncodeError):
        assistant("\ud800")
    with pytest.raises(BadRequest, match="surrogate"):
        call_of("c", "t", {"a": "\ud800"}, "x")
    assert call_of("c", "t", {"a": "\U0001f600"}, "x").value == {"a": "\U0001f600"}
    assert not call_of("c", "t", '{"a": "\\ud800"}', "x").is_json


def test_numbers_that_are_not_json_are_refused() -> None:
    with pytest.raises(BadRequest, match="inf"):
        call_of("c", "t", {"a": float("inf")}, "x")


def test_reasoning_ids_and_signatures_are_not_part_of_the_digest() -> None:
    plain = assistant("hi", (call_of("a", "t", {}, "x"),))
    other = assistant("hi", (call_of("b", "t", {}, "x"),), reasoning="hm", echoed=("sig",))
    assert plain.digest == other.digest


def test_blank_blocks_of_an_answer_are_not_compared() -> None:
    call = call_of("toolu_1", "Bash", {"command": "ls"}, "test")
    delivered = Message.of(MessageRole.ASSISTANT, ("\n\n",), (call,))
    assert delivered.texts == ("\n\n",)
    assert delivered.digest == Message.of(MessageRole.ASSISTANT, (), (call,)).digest
    assert Message.of(MessageRole.ASSISTANT, ("\n\nfine",)).digest != assistant("fine").digest
    assert Message.of(MessageRole.USER, ("\n\n",)).digest != Message.of(MessageRole.USER).digest


def test_a_conversation_is_written_as_chat_completions() -> None:
    answer = assistant("", (call_of("c1", "t", '{"b": 1, "a": 2}', "x"), call_of("c2", "t", {"q": 1}, "x")), "hm")
    result = Message.of(MessageRole.TOOL, ("ok",), answers=1)
    orphan = Message.of(MessageRole.TOOL, ("?",), answers="c9")
    assert to_chat((Message.of(MessageRole.USER, ("a", "b")), answer, result, orphan)) == [
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"b": 1, "a": 2}'}},
                {"id": "c2", "type": "function", "function": {"name": "t", "arguments": '{"q":1}'}},
            ],
        },
        {"role": "tool", "content": "ok", "tool_call_id": "c2"},
        {"role": "tool", "content": "?", "tool_call_id": "c9"},
    ]


def test_a_history_is_put_between_instructions_and_input() -> None:
    system, user, old = (Message.of(MessageRole.SYSTEM, ("s",)), Message.of(MessageRole.USER, ("u",)), assistant("a"))
    request = CanonicalRequest(Api.RESPONSES, "m", (system, user), has_instructions=True, previous_response_id="r")
    whole = request.with_history((old,))
    assert (whole.messages, whole.previous_response_id) == ((system, old, user), None)
    with pytest.raises(BadRequest, match="input"):
        request.with_history((old,) * MAX_MESSAGES)
