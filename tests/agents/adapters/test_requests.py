"""Reading what client libraries send and receive: anything may come, and a stream reads as its whole answer does."""

from types import SimpleNamespace
from typing import Any

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, model_serializer

from headrace.agents.adapters import requests
from headrace.agents.adapters.conversations import MAX_KNOWN, Conversations, chain_of
from headrace.agents.adapters.requests import plain, read_answer, read_request
from headrace.agents.adapters.streamed_answers import STREAMS
from headrace.agents.gateway.canonical import Api, Message, MessageRole
from tests.agents.adapters.scripted import (
    SEARCH,
    call_item,
    chat,
    chat_stream,
    message,
    message_stream,
    response,
    text_item,
)

APIS = st.sampled_from([Api.CHAT, Api.RESPONSES, Api.MESSAGES])
WORDS = st.sampled_from(
    ["role", "content", "type", "text", "input", "user", "assistant", "tool", "tool_use", "message", "output", "id"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "input", "system", "instructions", "previous_response_id", "choices"])
    | st.sampled_from(["output", "content", "usage", "stop_reason", "status", "incomplete_details"]),
    JSON,
)
USE = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"query": "44"}}
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def objects(value: Any) -> Any:
    """JSON as the objects that a client library makes of it."""
    if isinstance(value, list):
        return [objects(each) for each in value]
    if not isinstance(value, dict):
        return value
    return Parsed(value)


class Parsed(SimpleNamespace):
    """An object with an attribute for each key; an attribute that was not sent is ``None``."""

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(**{key: objects(each) for key, each in value.items()})

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@given(api=APIS, body=BODIES)
def test_nothing_that_a_client_sends_or_receives_raises(api: Api, body: dict[str, Any]) -> None:
    for found in (read_request(api, body).messages, [read_answer(api, body).message]):
        assert all(each is None or isinstance(each, Message) for each in found or ())


@given(text=TEXTS)
def test_a_chat_stream_reads_as_the_whole_answer(text: str) -> None:
    stream = STREAMS[Api.CHAT]()
    for chunk in chat_stream(text[:7], text[7:], calls=(SEARCH,)):
        stream.add(objects(chunk | {"usage": None}))
    whole, streamed = read_answer(Api.CHAT, chat(text, SEARCH)), read_answer(Api.CHAT, stream.body())
    assert streamed.message == whole.message
    assert (streamed.model, streamed.finish_reason) == (whole.model, whole.finish_reason)


@pytest.mark.parametrize("cut", [2, 3, 4, 5])
def test_a_stream_that_was_cut_reads_as_far_as_it_came(cut: int) -> None:
    pieces = ["We ", "have", " both", "."]
    stream = STREAMS[Api.CHAT]()
    for chunk in chat_stream(*pieces)[:cut]:
        stream.add(objects(chunk))
    said = read_answer(Api.CHAT, stream.body()).message
    assert said is not None
    assert said.text == "".join(pieces[: cut - 1])


def test_arguments_that_were_cut_are_kept_as_text() -> None:
    events = message_stream({"type": "text", "text": "Yes."}, USE)[:7]
    stream = STREAMS[Api.MESSAGES]()
    adapter: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    for event in events:
        stream.add(adapter.validate_python(event))
    said = read_answer(Api.MESSAGES, stream.body()).message
    assert said is not None
    assert [(call.tool, call.value) for call in said.calls] == [("search", {"raw": '{"q'})]


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        (Api.CHAT, chat("Yes.", SEARCH)),
        (Api.RESPONSES, response(text_item("Yes."), call_item())),
        (Api.MESSAGES, message({"type": "text", "text": "Yes."}, USE)),
    ],
)
def test_an_answer_comes_back_with_the_digest_that_it_had(api: Api, answer: Any) -> None:
    """A conversation is recognised although the client sends the answer in another form."""
    said = read_answer(api, answer).message
    assert said is not None
    assert [call.tool for call in said.calls] == ["search"]
    if api is Api.CHAT:
        history = {"messages": [answer["choices"][0]["message"]]}
    elif api is Api.RESPONSES:
        history = {"input": answer["output"]}
    else:
        history = {"messages": [{"role": "assistant", "content": answer["content"]}]}
    assert [each.digest for each in read_request(api, history).messages or ()] == [said.digest]


def test_no_iterator_is_consumed() -> None:
    held = iter([{"role": "user", "content": "hello"}])
    assert plain({"messages": held, "n": (1, "a")}) == {"messages": None, "n": [1, "a"]}
    assert read_request(Api.CHAT, {"messages": held}).messages is None
    assert list(held) == [{"role": "user", "content": "hello"}]


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), edited=st.integers(0, 7))
def test_what_is_new_begins_where_the_known_conversation_ends(texts: list[str], edited: int) -> None:
    messages = tuple(Message.of(MessageRole.USER, (text,)) for text in texts)
    conversations = Conversations()
    conversations.add(chain_of(messages)[-1])
    more = (*messages, Message.of(MessageRole.USER, ("more",)))
    assert conversations.known_length(chain_of(more)) == len(messages)
    changed = list(more)
    place = edited % len(messages)
    changed[place] = Message.of(MessageRole.USER, (f"{texts[place]}, edited",))
    assert conversations.known_length(chain_of(tuple(changed))) == 0


def test_memory_is_bounded() -> None:
    conversations = Conversations()
    for number in range(2 * MAX_KNOWN):
        conversations.add(number.to_bytes(4))
    assert len(conversations.known) == MAX_KNOWN


def test_a_value_that_contains_itself_is_read_in_bounded_time() -> None:
    """A client refuses to send it, and the failed call is recorded."""
    loop: dict[str, Any] = {}
    loop |= {"parent": loop, "children": [loop, loop]}
    found = read_request(Api.CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi", "place": loop}]})
    assert found.messages is not None
    assert [each.text for each in found.messages] == ["Hi"]


def test_a_long_value_is_read_up_to_a_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_VALUES", 5)
    assert plain([1, {"a": 2}, [3]]) == [1, {"a": 2}, [None]]
    assert plain([1, {"a": 2}, [3]]) == [1, {"a": 2}, [None]], "for each value anew"


def test_a_model_that_cannot_be_serialised_is_left_out() -> None:
    class Odd(BaseModel):
        content: Any

    class Failing(BaseModel):
        content: str

        @model_serializer
        def fail(self) -> dict[str, Any]:
            raise LookupError("of the host")

    assert plain({"a": Odd(content=object()), "b": Failing(content="x"), "c": Odd(content="x")}) == {
        "a": None,
        "b": None,
        "c": {"content": "x"},
    }
