"""Streams of odd servers → answers: what is kept is what was said, from its beginning, and nothing is mixed up."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.agents.adapters import streamed_answers
from headrace.agents.adapters.requests import read_answer
from headrace.agents.adapters.streamed_answers import CUT, STREAMS, ChatStream, MessageStream, ResponseStream, Texts
from headrace.agents.gateway.canonical import MAX_CHARACTERS, Api, to_chat


def chunk(delta: Any = None, **fields: Any) -> SimpleNamespace:
    """A chunk of a chat completion, with one choice."""
    return SimpleNamespace(choices=[SimpleNamespace(**{"index": 0, "delta": delta, "finish_reason": None} | fields)])


def call(index: int | None, id: str | None, name: str | None, arguments: str | None) -> SimpleNamespace:
    return SimpleNamespace(index=index, id=id, function=SimpleNamespace(name=name, arguments=arguments))


def calls(*pieces: SimpleNamespace) -> SimpleNamespace:
    return chunk(SimpleNamespace(tool_calls=list(pieces)))


def said(text: str) -> SimpleNamespace:
    return chunk(SimpleNamespace(content=text))


def chat_of(*chunks: SimpleNamespace) -> dict[str, Any]:
    stream = ChatStream()
    for each in chunks:
        stream.add(each)
    found: dict[str, Any] = stream.body()["choices"][0]
    return found


def called(*chunks: SimpleNamespace) -> list[tuple[Any, ...]]:
    """Id, name and arguments of each tool call."""
    found = chat_of(*chunks)["message"].get("tool_calls", [])
    return [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in found]


# Texts that are too long.


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_answers, "KEPT_CHARACTERS", 10)


@pytest.mark.usefixtures("short")
def test_of_a_text_that_is_too_long_the_beginning_is_kept_and_it_is_marked() -> None:
    texts = Texts()
    for piece in ("0123", "456789abc", "d", ""):
        texts.add("a", piece)
    texts.add("b", "later")
    texts.add("c", None)
    texts.add("c", "")
    assert (texts.get("a"), texts.get("b"), texts.get("c")) == ("0123456789" + CUT, CUT, "")


@pytest.mark.usefixtures("short")
def test_a_text_of_exactly_the_limit_is_whole() -> None:
    texts = Texts()
    texts.add("a", "01234")
    texts.add("b", "56789")
    assert (texts.get("a"), texts.get("b")) == ("01234", "56789")


@pytest.mark.usefixtures("short")
def test_a_long_answer_is_marked_as_cut_in_every_api() -> None:
    assert chat_of(said("01234567"), said("89abc"), said("d"))["message"]["content"] == "0123456789" + CUT
    response = ResponseStream()
    for text in ("01234567", "89abc", "d"):
        response.add(SimpleNamespace(type="response.output_text.delta", delta=text))
    assert response.body()["output"][0]["content"] == "0123456789" + CUT
    message = MessageStream()
    message.add(SimpleNamespace(type="message_start", message={"role": "assistant"}))
    message.add(SimpleNamespace(type="content_block_start", index=0, content_block={"type": "text", "text": ""}))
    for text in ("01234567", "89abc", "d"):
        message.add(SimpleNamespace(type="content_block_delta", index=0, delta=SimpleNamespace(text=text)))
    assert message.body()["content"] == [{"type": "text", "text": "0123456789" + CUT}]


@pytest.mark.usefixtures("short")
def test_arguments_that_are_cut_are_no_arguments() -> None:
    """They could be JSON by chance."""
    assert called(calls(call(0, "c", "f", "{}        "), call(0, None, None, " "))) == [("c", "f", "{}        " + CUT)]


def test_an_answer_of_the_greatest_length_can_be_read() -> None:
    body = ChatStream()
    for _ in range(5):
        body.add(said("x" * (MAX_CHARACTERS // 4)))
    message = read_answer(Api.CHAT, body.body()).message
    assert message is not None
    assert message.text.endswith("x" + CUT)


# Tool calls in pieces.


def test_pieces_of_tool_calls_may_alternate() -> None:
    found = called(
        calls(call(1, "b", "g", "{")), calls(call(0, "a", "f", "")), calls(call(1, None, None, "}")),
        calls(call(0, None, None, "[]"), call(1, "", "", None)),
        calls(SimpleNamespace(index=0, id=None, function=None)),
    )  # fmt: skip
    assert found == [("a", "f", "[]"), ("b", "g", "{}")]


def test_tool_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    found = called(
        calls(call(None, "a", "f", '{"x"')), calls(call(None, None, None, ": 1}")), calls(call(None, "b", "g", "{")),
        calls(call(None, "b", None, "}")),
    )  # fmt: skip
    assert found == [("a", "f", '{"x": 1}'), ("b", "g", "{}")]
    assert called(calls(call(None, "a", "f", "{}"), call(None, "b", "f", "{}"))) == [("a", "f", "{}"), ("b", "f", "{}")]


def test_tool_calls_without_an_index_do_not_mix_with_those_that_have_one() -> None:
    assert called(calls(call(0, "a", "f", "{}")), calls(call(None, "b", "g", "[]"))) == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]
    assert called(calls(call(None, "a", "f", "{}")), calls(call(1, "b", "g", "[]"))) == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]


def test_a_piece_without_index_and_id_continues_the_last_call() -> None:
    assert called(calls(call(0, "a", "f", "{")), calls(call(None, None, None, "}"))) == [("a", "f", "{}")]
    piece = SimpleNamespace(function=SimpleNamespace(arguments="{}"))
    assert called(calls(piece)) == [(None, None, "{}")]


# Chunks that lack what the API promises.


def test_what_a_chunk_lacks_does_not_end_the_answer() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    odd = [
        SimpleNamespace(),
        SimpleNamespace(choices=None, usage=None),
        SimpleNamespace(choices=[]),
        SimpleNamespace(choices=[SimpleNamespace()]),
        chunk(None),
        chunk(SimpleNamespace(content=None, tool_calls=None)),
        chunk(SimpleNamespace(content=7)),
        SimpleNamespace(choices=[], usage=usage, id="c1", model="m"),
    ]
    chunks = [said("We "), *odd, SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content="have "))])]
    stream = ChatStream()
    for each in (*chunks, chunk(SimpleNamespace(content="both."), index=None), chunk(None, finish_reason="stop"), *odd):
        stream.add(each)
    read = read_answer(Api.CHAT, stream.body())
    assert read.message is not None
    assert (read.message.text, read.finish_reason) == ("We have both.", "stop")
    assert (read.prompt_tokens, read.completion_tokens, read.model, read.response_id) == (4, 2, "m", "c1")


def test_only_the_first_of_several_choices_is_kept() -> None:
    two = [
        SimpleNamespace(index=1, delta=SimpleNamespace(content="No."), finish_reason="length"),
        SimpleNamespace(index=0, delta=SimpleNamespace(content="Yes."), finish_reason="stop"),
    ]
    found = chat_of(SimpleNamespace(choices=two), SimpleNamespace(choices=two[:1]))
    assert (found["message"]["content"], found["finish_reason"]) == ("Yes.", "stop")


def test_a_message_without_its_start_is_an_answer() -> None:
    stream = MessageStream()
    stream.add(SimpleNamespace(type="message_start", message=None))
    stream.add(SimpleNamespace(type="content_block_start", index=0, content_block={"type": "text", "text": "Y"}))
    stream.add(SimpleNamespace(type="content_block_delta", index=0, delta=SimpleNamespace(text="es.")))
    stream.add(SimpleNamespace(type="message_delta", delta=SimpleNamespace(stop_reason="end_turn"), usage=None))
    read = read_answer(Api.MESSAGES, stream.body())
    assert read.message is not None
    assert (read.message.text, read.finish_reason) == ("Yes.", "end_turn")


def test_blocks_of_a_message_have_the_order_of_their_indices_and_all_of_their_texts() -> None:
    stream = MessageStream()
    usage = {"input_tokens": 5, "output_tokens": 0}
    stream.add(SimpleNamespace(type="message_start", message={"role": "assistant", "usage": usage}))
    text, thinking = {"type": "text", "text": "Y"}, {"type": "thinking", "thinking": "", "signature": ""}
    stream.add(SimpleNamespace(type="content_block_start", index=1, content_block=text))
    stream.add(SimpleNamespace(type="content_block_start", index=0, content_block=thinking))
    deltas = [(0, {"thinking": "Hm"}), (1, {"text": "es"}), (0, {"thinking": "."}), (0, {"signature": "s1"})]
    for index, delta in deltas:
        stream.add(SimpleNamespace(type="content_block_delta", index=index, delta=SimpleNamespace(**delta)))
    last = SimpleNamespace(stop_reason="end_turn")
    stream.add(SimpleNamespace(type="message_delta", delta=last, usage={"output_tokens": 3}))
    found = stream.body()
    assert found["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        {"type": "text", "text": "Yes"},
    ]
    assert found["usage"] == {"input_tokens": 5, "output_tokens": 3}


def test_a_response_that_is_cut_keeps_its_whole_items_and_the_text_that_had_begun() -> None:
    stream = ResponseStream()
    stream.add(SimpleNamespace(type="response.created", response={"id": "r1", "model": "m", "output": []}))
    stream.add(SimpleNamespace(type="response.output_text.delta", delta="on"))
    stream.add(SimpleNamespace(type="response.output_text.delta", delta="e"))
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]}
    stream.add(SimpleNamespace(type="response.output_item.done", item=item))
    stream.add(SimpleNamespace(type="response.output_text.delta", delta="tw"))
    read = read_answer(Api.RESPONSES, stream.body())
    assert read.message is not None
    assert (read.message.text, read.model, read.response_id) == ("one\ntw", "m", "r1")


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_a_response_that_is_whole_is_taken_as_it_is(kind: str) -> None:
    stream = ResponseStream()
    stream.add(SimpleNamespace(type="response.created", response={"id": "r1", "model": "m", "output": []}))
    stream.add(SimpleNamespace(type="response.output_text.delta", delta="on"))
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]}
    whole = {"id": "r1", "model": "m", "output": [item], "status": kind, "usage": {"input_tokens": 3}}
    stream.add(SimpleNamespace(type=f"response.{kind}", response=whole))
    assert stream.body() == whole


def test_a_response_of_which_no_text_had_begun_has_its_whole_items_alone() -> None:
    stream = ResponseStream()
    stream.add(SimpleNamespace(type="response.created", response={"id": "r1", "model": "m", "output": []}))
    assert stream.body()["output"] == []
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    stream.add(SimpleNamespace(type="response.output_item.done", item=call))
    assert stream.body()["output"] == [call]


def test_a_response_that_was_left_has_no_reason_for_its_end() -> None:
    stream = ResponseStream()
    begun = {"id": "r1", "model": "m", "output": [], "status": "in_progress"}
    stream.add(SimpleNamespace(type="response.created", response=begun))
    stream.add(SimpleNamespace(type="response.output_text.delta", delta="on"))
    read = read_answer(Api.RESPONSES, stream.body())
    assert read.message is not None
    assert (read.message.text, read.finish_reason) == ("on", None)


def test_a_tool_call_of_a_message_that_is_cut_keeps_its_text() -> None:
    stream = MessageStream()
    stream.add(SimpleNamespace(type="message_start", message={"role": "assistant"}))
    tool = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    stream.add(SimpleNamespace(type="content_block_start", index=0, content_block=tool))
    stream.add(SimpleNamespace(type="content_block_delta", index=0, delta=SimpleNamespace(partial_json='{"a": ')))
    read = read_answer(Api.MESSAGES, stream.body())
    assert read.message is not None
    (found,) = to_chat((read.message,))
    assert found["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": '}


VALUES: tuple[Any, ...] = (None, "", "text", 0, 1, -1, True, 1.5, [], {}, ["a"], {"a": 1}, b"x", object())
NAMES = (
    *("type", "index", "choices", "delta", "content", "tool_calls", "function", "name", "arguments", "id", "usage"),
    *("message", "content_block", "response", "item", "stop_reason", "text", "partial_json", "finish_reason", "model"),
)
TYPES = (
    *("message_start", "content_block_start", "content_block_delta", "message_delta", "response.created"),
    *("response.output_item.done", "response.output_text.delta", "response.completed"),
)


def anything(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth < 4 and kind < 0.4:
        names = draw.sample(NAMES, draw.randint(0, 8))
        found = {name: anything(draw, depth + 1) for name in names}
        return SimpleNamespace(**found | ({"type": draw.choice(TYPES)} if draw.random() < 0.5 else {}))
    if depth < 4 and kind < 0.6:
        return [anything(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return draw.choice(VALUES)


@pytest.mark.parametrize("api", STREAMS)
def test_any_chunks_leave_an_answer_that_can_be_read(api: Api) -> None:
    """``add`` may raise for a chunk, which the adapter counts; the answer is recorded anyway."""
    draw = random.Random(7)
    for _ in range(400):
        stream = STREAMS[api]()
        for _ in range(draw.randint(0, 12)):
            try:
                stream.add(anything(draw))
            except (AttributeError, TypeError):
                continue
        read_answer(api, stream.body())
