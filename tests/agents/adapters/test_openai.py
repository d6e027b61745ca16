"""Wrapped clients of OpenAI against a scripted endpoint: what the caller receives and what is recorded.

``test_openai_2.py`` runs this file with version 2 of the library.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from headrace.agents.encoding import Note, encode_note
from headrace.agents.masking.masker import Masker
from headrace.agents.masking.settings import Masking
from headrace.agents.sdk import Headrace
from tests.agents.adapters.scripted import (
    SEARCH,
    Endpoint,
    Reply,
    call_item,
    chat,
    chat_stream,
    response,
    response_stream,
    text_item,
)
from tests.agents.sdk_helpers import kinds

ASK = {"role": "user", "content": "boots in 44?"}
YES = {"role": "assistant", "content": "We have both."}
CALL = {"role": "assistant", "content": "", "tool_calls": [SEARCH]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "boots"}
TWO_CALLS = ["model.called", "tool.called", "tool.returned", "model.called"]


class Verdict(BaseModel):
    in_stock: bool


@pytest.fixture
def client(headrace: Headrace, endpoint: Endpoint) -> openai.OpenAI:
    return headrace.wrap(openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0))


@pytest.fixture
def plain(endpoint: Endpoint) -> openai.OpenAI:
    """The client as it is without headrace."""
    return openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def async_client(headrace: Headrace, endpoint: Endpoint) -> openai.AsyncOpenAI:
    return headrace.wrap(openai.AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0))


def calls(notes: list[Note]) -> list[dict[str, Any]]:
    return [note.fields for note in notes if note.model.TYPE == "headrace.model.called.v1"]


def test_a_call_is_recorded_and_its_answer_unchanged(
    headrace: Headrace, client: openai.OpenAI, plain: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat("We have both."), chat("We have both."))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        found = client.chat.completions.create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
    expected = plain.chat.completions.create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
    assert (found, type(found), found._request_id) == (expected, type(expected), "req_1")
    assert endpoint.requests[0][1] == endpoint.requests[1][1]
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    called = notes[1].fields
    assert (called["model"], called["messages"], called["finish_reason"]) == ("gpt-4o-2024", [ASK, YES], "stop")
    assert (called["usage"].prompt_tokens, called["usage"].completion_tokens) == (9, 3)
    assert called["sampled_ids"] is None
    assert called["latency_s"] > 0
    assert headrace.stats.dropped == {}


def test_tools_come_from_the_conversation_and_each_message_is_recorded_once(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat(None, SEARCH), chat("We have both."))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        messages: list[Any] = [ASK]
        answer = client.chat.completions.create(model="gpt-4o", messages=messages)
        messages += [answer.choices[0].message, RESULT]
        client.chat.completions.create(model="gpt-4o", messages=messages)
    assert kinds(notes)[1:-1] == TWO_CALLS
    assert [called["messages"] for called in calls(notes)] == [[ASK, CALL], [RESULT, YES]]
    called, returned = notes[2].fields, notes[3].fields
    assert (called["tool"], called["arguments"], returned["result"]) == ("search", {"query": "44"}, "boots")
    assert called["call_id"] == returned["call_id"] == "call_1"


def test_a_program_that_records_its_tools_says_so(
    headrace: Headrace, endpoint: Endpoint, plain: openai.OpenAI, notes: list[Note]
) -> None:
    client = headrace.wrap(plain, record_tools=False)
    endpoint.answers(chat(None, SEARCH))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        client.chat.completions.create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]


Streams = Callable[[openai.OpenAI], Iterator[Any]]


def created(client: openai.OpenAI) -> Iterator[Any]:
    return iter(client.chat.completions.create(model="gpt-4o", messages=[ASK], stream=True))  # type: ignore[list-item]


def managed(client: openai.OpenAI) -> Iterator[Any]:
    with client.chat.completions.stream(model="gpt-4o", messages=[ASK]) as stream:  # type: ignore[list-item]
        yield from stream


def responded(client: openai.OpenAI) -> Iterator[Any]:
    return iter(client.responses.create(model="gpt-5", input="boots in 44?", stream=True))


def responded_managed(client: openai.OpenAI) -> Iterator[Any]:
    with client.responses.stream(model="gpt-5", input="boots in 44?") as stream:
        yield from stream


@pytest.mark.parametrize("run", [created, managed, responded, responded_managed])
def test_streams_pass_through_unchanged_and_are_recorded_whole(
    run: Streams,
    headrace: Headrace,
    client: openai.OpenAI,
    plain: openai.OpenAI,
    endpoint: Endpoint,
    notes: list[Note],
) -> None:
    chats = run in (created, managed)
    script: list[dict[str, Any]] = chat_stream("We have", " both.", calls=(SEARCH,))
    endpoint.answers(*[script if chats else response_stream(text_item("We have both."), call_item())] * 2)
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        found = [repr(event) for event in run(client)]
    assert found == [repr(event) for event in run(plain)]
    assert endpoint.requests[0][1] == endpoint.requests[1][1]
    assert kinds(notes) == ["trajectory.started", "model.called", "tool.called", "trajectory.ended"]
    (called,) = calls(notes)
    assert called["messages"] == [ASK, CALL | {"content": "We have both."}]
    assert (called["usage"].prompt_tokens, called["usage"].completion_tokens) == (9, 3)
    assert (called["finish_reason"], headrace.stats.dropped) == ("tool_calls", {})


def test_a_stream_is_read_only_when_the_caller_reads_and_recorded_as_far_as_it_was_read(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat_stream("We have", " both."))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        stream = client.chat.completions.create(model="gpt-4o", messages=[ASK], stream=True)  # type: ignore[list-item]
        assert isinstance(stream, openai.Stream)
        assert kinds(notes) == ["trajectory.started"]
        with stream:
            assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "We have"]
    (called,) = calls(notes)
    assert called["messages"] == [ASK, YES | {"content": "We have"}]
    assert called["delivered"] is False


def test_an_asynchronous_client(
    headrace: Headrace, async_client: openai.AsyncOpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat(None, SEARCH), chat_stream("We have", " both."), response(text_item("Yes.")))

    async def work() -> None:
        async with headrace.trajectory(task_id="order-17", agent="checkout"):
            create = async_client.chat.completions.create
            first = await create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
            history: Any = [ASK, first.choices[0].message, RESULT]
            stream = await create(model="gpt-4o", messages=history, stream=True)
            assert isinstance(stream, openai.AsyncStream)
            assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "We have both."
            answer = await async_client.responses.create(model="gpt-5", input="sure?")
            assert answer.output_text == "Yes."

    asyncio.run(work())
    assert kinds(notes)[1:-1] == [*TWO_CALLS, "model.called"]
    assert [called["messages"] for called in calls(notes)[:2]] == [[ASK, CALL], [RESULT, YES]]


def test_structured_answers_are_parsed_as_ever(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    text = '{"in_stock": true}'
    endpoint.answers(chat(text), response(text_item(text)))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        parsed = client.chat.completions.parse(model="gpt-4o", messages=[ASK], response_format=Verdict)  # type: ignore[list-item]
        assert parsed.choices[0].message.parsed == Verdict(in_stock=True)
        read = client.responses.parse(model="gpt-5", input="boots?", text_format=Verdict)
        assert read.output_parsed == Verdict(in_stock=True)
    assert [called["messages"][-1]["content"] for called in calls(notes)] == [text, text]


def test_responses_are_continued_by_their_items_or_by_their_id(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(response(call_item()), response(text_item("Both.")), response(text_item("Yes."), unique="resp_2"))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        items: list[Any] = [ASK]
        items += client.responses.create(model="gpt-5", input=items).output
        items.append({"type": "function_call_output", "call_id": "call_1", "output": "boots"})
        client.responses.create(model="gpt-5", input=items)
        client.responses.create(model="gpt-5", input="sure?", previous_response_id="resp_1")
    assert kinds(notes)[1:-1] == [*TWO_CALLS, "model.called"]
    assert [called["messages"] for called in calls(notes)] == [
        [ASK, CALL],
        [RESULT, YES | {"content": "Both."}],
        [{"role": "user", "content": "sure?"}, YES | {"content": "Yes."}],
    ]


def test_outside_a_trajectory_each_conversation_is_one(
    client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat("We have both."), chat("Yes."), chat("Hello."))
    other = {"role": "user", "content": "hello"}
    again = {"role": "user", "content": "sure?"}
    for messages in ([ASK], [ASK, YES, again], [other]):
        client.chat.completions.create(model="gpt-4o", messages=messages)  # type: ignore[arg-type]
    assert kinds(notes) == ["trajectory.started", "model.called", "model.called", "trajectory.started", "model.called"]
    assert notes[2].fields["messages"] == [again, YES | {"content": "Yes."}]
    assert len({note.trajectory_id for note in notes}) == 2
    assert notes[0].fields["agent"] == "client"


def test_an_error_reaches_the_caller_and_is_recorded(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.replies.append(Reply({"error": {"message": "too many"}}, status=429))
    with pytest.raises(openai.RateLimitError), headrace.trajectory(task_id="order-17", agent="checkout"):
        client.chat.completions.create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
    (called,) = calls(notes)
    assert (called["finish_reason"], called["model"]) == ("error", "gpt-4o")
    assert "too many" in called["error"].plain()


def test_masks_apply_and_every_event_can_be_sent(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat("Write to ada@mill.example", SEARCH))
    endpoint.replies.append(Reply({"error": {"message": "ada@mill.example is unknown"}}, status=404))
    ask: dict[str, Any] = {"model": "gpt-4o", "messages": [ASK]}
    client.chat.completions.create(**ask)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ask)
    masker = Masker(Masking())
    sent = [json.loads(encode_note(note, "shop", 2**20, masker).message.value) for note in notes]
    assert kinds(notes) == ["trajectory.started", "model.called", "tool.called", "model.called"]
    assert (sent[0]["inferred"], sent[1]["messages"][1]["content"]) == (True, "Write to [email]")
    assert sent[3]["error"].startswith("NotFoundError: ")
    assert "ada@" not in json.dumps(sent)


def test_what_went_through_a_gateway_is_not_recorded_again(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    gateway = {"x_headrace_session": "s1", "x_headrace_trajectory": "019-main", "x_headrace_outcome": "new_trajectory"}
    endpoint.answers(chat("title"), **gateway | {"x_headrace_outcome": "side", "x_headrace_trajectory": "019-side"})
    endpoint.answers(chat(None, SEARCH), chat_stream("We have both."), chat("sub"), chat("alone"), **gateway)
    ask: dict[str, Any] = {"model": "gpt-4o", "messages": [ASK]}
    with headrace.gateway_session("thread-7") as session:
        session.feedback("accepted", 0.0)
        client.chat.completions.create(**ask)
        client.chat.completions.create(**ask)
        with session.tool("search") as tool:
            tool.result = "boots"
        assert list(client.chat.completions.create(**ask, stream=True))
        with session.subagent("searcher", task_id="look"):
            client.chat.completions.create(**ask)
    client.chat.completions.create(**ask)
    assert notes == []
    session.feedback("accepted", 1.0)
    assert [(note.trajectory_id, note.fields["signal"]) for note in notes] == [("019-main", "accepted")]
    sent = [headers.get("x-session-id") for headers, _ in endpoint.requests]
    assert sent[:3] == ["thread-7"] * 3
    assert sent[3] not in (None, "thread-7")
    assert endpoint.requests[3][0]["x-parent-session-id"] == "thread-7"
    assert sent[4] is None
    assert headrace.stats.dropped == {"no_trajectory": 1}


def test_a_session_s_header_does_not_replace_the_program_s(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint
) -> None:
    endpoint.answers(chat("Yes."))
    with headrace.gateway_session():
        headers = {"X-Session-Id": "mine"}
        client.chat.completions.create(model="gpt-4o", messages=[ASK], extra_headers=headers)  # type: ignore[list-item]
    assert endpoint.requests[0][0]["x-session-id"] == "mine"


def test_a_trajectory_without_consent_is_not_recorded(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat(None, SEARCH))
    with headrace.trajectory(task_id="order-17", agent="checkout", consent="unrecorded"):
        client.chat.completions.create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
    assert notes == []


def test_raw_responses_copies_and_a_second_wrap(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(*[chat("We have both.")] * 3)
    ask: dict[str, Any] = {"model": "gpt-4o", "messages": [ASK]}
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        raw = client.chat.completions.with_raw_response.create(**ask)
        assert raw.parse().choices[0].message.content == "We have both."
        headrace.wrap(client).with_options(timeout=5).chat.completions.create(**ask)
        with client.chat.completions.with_streaming_response.create(**ask) as streamed:  # read by the caller alone
            assert b"We have both." in streamed.read()
    assert kinds(notes)[1:-1] == ["model.called"] * 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x"}}], "see\n[image_url]"),
        ([], ""),
    ],
)
def test_images_are_recorded_by_name(
    content: Any, text: str, headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat("We have both."))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": content}])
    assert calls(notes)[0]["messages"] == [{"role": "user", "content": text}, YES]


def test_answers_that_cannot_be_read_reach_the_caller(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers({"choices": 7, "usage": [], "model": {}}, {})
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        for _ in range(2):
            client.chat.completions.create(model="gpt-4o", messages=[ASK])  # type: ignore[list-item]
    assert kinds(notes)[1:-1] == ["model.called"] * 2


def test_the_library_has_the_expected_version() -> None:
    assert openai.__version__.startswith(os.environ.get("OPENAI_EXPECTED", "3."))


def test_only_clients_are_wrapped(headrace: Headrace) -> None:
    with pytest.raises(TypeError, match="expected a client of openai"):
        headrace.wrap(object())
