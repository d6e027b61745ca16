"""Wrapped clients of Anthropic against a scripted endpoint."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from headrace.schemas.events import ToolStatus
from tests.agents.adapters.scripted import Endpoint, Reply, message, message_stream
from tests.agents.sdk_helpers import kinds

ASK = {"role": "user", "content": "boots in 44?"}
TEXT = {"type": "text", "text": "We have both."}
USE = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"query": "44"}}
FAILURE = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no shop", "is_error": True}
REQUEST: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": [ASK], "system": "You sell boots."}
SAID = {"role": "assistant", "content": "We have both."}


class Verdict(BaseModel):
    in_stock: bool


def options(endpoint: Endpoint) -> dict[str, Any]:
    return {"base_url": endpoint.url, "api_key": "none", "max_retries": 0}


@pytest.fixture
def client(headrace: Headrace, endpoint: Endpoint) -> anthropic.Anthropic:
    return headrace.wrap(anthropic.Anthropic(**options(endpoint)))


@pytest.fixture
def plain(endpoint: Endpoint) -> anthropic.Anthropic:
    return anthropic.Anthropic(**options(endpoint))


def calls(notes: list[Note]) -> list[dict[str, Any]]:
    return [note.fields for note in notes if note.model.TYPE == "headrace.model.called.v1"]


def test_a_conversation_with_a_tool(
    headrace: Headrace, client: anthropic.Anthropic, plain: anthropic.Anthropic, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(message(TEXT, USE), message(TEXT, USE), message(TEXT))
    expected = plain.messages.create(**REQUEST)
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        answer = client.messages.create(**REQUEST)
        assert (answer, type(answer), answer._request_id) == (expected, type(expected), expected._request_id)
        history = [ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [FAILURE]}]
        client.messages.create(**REQUEST | {"messages": history})
    assert endpoint.requests[0][1] == endpoint.requests[1][1]
    assert kinds(notes)[1:-1] == ["model.called", "tool.called", "tool.returned", "model.called"]
    first, second = calls(notes)
    system = {"role": "system", "content": "You sell boots."}
    function = {"name": "search", "arguments": '{"query":"44"}'}
    asked = SAID | {"tool_calls": [{"id": "toolu_1", "type": "function", "function": function}]}
    assert first["messages"] == [system, ASK, asked]
    assert second["messages"] == [{"role": "tool", "tool_call_id": "toolu_1", "content": "no shop"}, SAID]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert (first["usage"].prompt_tokens, first["usage"].completion_tokens) == (9, 3)
    assert (notes[3].fields["status"], notes[3].fields["result"]) == (ToolStatus.ERROR, "no shop")
    assert headrace.stats.dropped == {}


def created(client: anthropic.Anthropic) -> Iterator[Any]:
    return iter(client.messages.create(**REQUEST, stream=True))


def managed(client: anthropic.Anthropic) -> Iterator[Any]:
    with client.messages.stream(**REQUEST) as stream:
        yield from stream


@pytest.mark.parametrize("run", [created, managed])
def test_streams_pass_through_unchanged_and_are_recorded_whole(
    run: Callable[[anthropic.Anthropic], Iterator[Any]],
    headrace: Headrace,
    client: anthropic.Anthropic,
    plain: anthropic.Anthropic,
    endpoint: Endpoint,
    notes: list[Note],
) -> None:
    endpoint.answers(*[message_stream(TEXT, USE)] * 2, message(TEXT, USE))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        found = [repr(event) for event in run(client)]
    assert found == [repr(event) for event in run(plain)]
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        client.messages.create(**REQUEST)
    streamed, whole = calls(notes)
    for name in ("model", "messages", "finish_reason", "usage"):
        assert streamed[name] == whole[name]
    assert headrace.stats.dropped == {}


def test_an_asynchronous_client_streams_and_parses(headrace: Headrace, endpoint: Endpoint, notes: list[Note]) -> None:
    client = headrace.wrap(anthropic.AsyncAnthropic(**options(endpoint)))
    verdict = {"type": "text", "text": '{"in_stock": true}'}
    endpoint.answers(message_stream(TEXT), message_stream(TEXT), message(verdict), message_stream(TEXT, TEXT))

    async def work() -> None:
        async with headrace.trajectory(task_id="order-17", agent="checkout"):
            async with client.messages.stream(**REQUEST) as stream:
                assert [text async for text in stream.text_stream] == ["We ", "have both."]
            assert [event async for event in await client.messages.create(**REQUEST, stream=True)]
            parsed = await client.messages.parse(**REQUEST, output_format=Verdict)
            assert parsed.parsed_output == Verdict(in_stock=True)
            async with client.messages.stream(**REQUEST) as stream:
                async for _ in stream.text_stream:
                    break  # the rest is not read

    asyncio.run(work())
    assert kinds(notes)[1:-1] == ["model.called"] * 4
    assert [called["messages"][-1]["content"] for called in calls(notes)] == [
        "We have both.",
        "We have both.",
        '{"in_stock": true}',
        "We ",
    ]
    assert [called.get("delivered") for called in calls(notes)] == [None, None, None, False]


def test_errors_and_iterators_are_left_to_the_client(
    headrace: Headrace, client: anthropic.Anthropic, endpoint: Endpoint, notes: list[Note]
) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    endpoint.replies.append(Reply(error, status=529))
    endpoint.answers(message(TEXT))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        with pytest.raises(anthropic.APIStatusError):
            client.messages.create(**REQUEST)
        client.messages.create(**REQUEST | {"messages": (each for each in [ASK])})
    assert endpoint.requests[1][1]["messages"] == [ASK]
    failed, answered = calls(notes)
    assert "busy" in failed["error"].plain()
    assert answered["messages"] == [SAID]


def test_what_went_through_a_gateway_is_not_recorded_again(
    headrace: Headrace, client: anthropic.Anthropic, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(message(TEXT), message_stream(TEXT), x_headrace_session="s", x_headrace_trajectory="019-main")
    with headrace.gateway_session() as session:
        client.messages.create(**REQUEST)
        assert list(client.messages.create(**REQUEST, stream=True))
    assert (notes, session.trajectory_id) == ([], "019-main")
    assert [headers["x-session-id"] for headers, _ in endpoint.requests] == [session.session_id] * 2
