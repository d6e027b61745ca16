"""Streams that end early: what the caller sees is unchanged, and what was read of them is recorded once."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.adapters.scripted import Endpoint, chat, chat_stream
from tests.agents.sdk_helpers import kinds

ASK: Any = {"role": "user", "content": "boots in 44?"}
FAILURE: dict[str, Any] = {"error": {"message": "out of memory"}}


def calls(notes: list[Note]) -> list[dict[str, Any]]:
    return [note.fields for note in notes if note.model.TYPE == "headrace.model.called.v1"]


@pytest.fixture
def client(headrace: Headrace, endpoint: Endpoint) -> openai.OpenAI:
    return headrace.wrap(openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0))


@pytest.fixture
def async_client(headrace: Headrace, endpoint: Endpoint) -> openai.AsyncOpenAI:
    return headrace.wrap(openai.AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0))


def test_an_error_in_the_middle_reaches_the_caller(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers([*chat_stream("We have", " both.")[:2], FAILURE])
    found = []
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        stream = client.chat.completions.create(model="m", messages=[ASK], stream=True)
        with pytest.raises(openai.APIError, match="out of memory"):
            found += [chunk.choices[0].delta.content for chunk in stream]
        assert list(stream) == [], "as the library's own stream then"
    (called,) = calls(notes)
    assert called["messages"][-1]["content"] == "We have"
    assert called["delivered"] is False
    assert "out of memory" in called["error"].plain()
    assert headrace.stats.dropped == {}


def test_a_stream_that_nobody_reads_to_its_end_is_recorded_when_it_is_forgotten(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat_stream("We have", " both."))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        stream = client.chat.completions.create(model="m", messages=[ASK], stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        assert calls(notes) == []
        del stream, chunk
        gc.collect()
        (called,) = calls(notes)
    assert (called["messages"][-1]["content"], called["delivered"]) == ("We have", False)


def test_a_stream_that_outlives_its_trajectory_is_recorded_at_the_end_as_far_as_it_was_read(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(chat_stream("We have", " both."))
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        stream = client.chat.completions.create(model="m", messages=[ASK], stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    (called,) = calls(notes)
    assert (called["messages"][-1]["content"], called["delivered"]) == ("We have", False)
    assert next(chunk.choices[0].delta.content for chunk in stream if chunk.choices) == " both.", "it can be read on"
    stream.close()
    assert (len(notes), headrace.stats.dropped) == (3, {})


@pytest.mark.parametrize("closes", [True, False])
def test_a_cancelled_reader_is_cancelled_and_the_call_is_recorded(
    headrace: Headrace, async_client: openai.AsyncOpenAI, endpoint: Endpoint, notes: list[Note], closes: bool
) -> None:
    """A stream that nobody closes is forgotten after the trajectory has ended, so its call is recorded at that end."""
    endpoint.answers(chat_stream("We have", " both."))
    read: list[Any] = []

    async def take(stream: openai.AsyncStream[Any]) -> None:
        async for chunk in stream:
            read.append(chunk.choices[0].delta.content)
            if len(read) == 2:
                await asyncio.sleep(60)

    async def work() -> None:
        async with headrace.trajectory(task_id="order-17", agent="checkout"):
            stream = await async_client.chat.completions.create(model="m", messages=[ASK], stream=True)
            if closes:
                async with stream:
                    await take(stream)
            else:
                await take(stream)

    async def cancel() -> None:
        task = asyncio.create_task(work())
        while len(read) < 2:  # noqa: ASYNC110 - what the task has read
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(cancel())
    gc.collect()
    assert read == ["", "We have"]
    assert [called["messages"][-1]["content"] for called in calls(notes)] == ["We have"]
    assert [called["delivered"] for called in calls(notes)] == [False]
    assert headrace.stats.dropped == {}
    assert kinds(notes)[-1] == "trajectory.ended"
    assert notes[-1].fields["status"] == "aborted"


def test_a_client_may_be_used_by_many_threads(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    endpoint.answers(*[chat("Yes.")] * 40)

    def ask(number: int) -> str | None:
        with headrace.trajectory(task_id=f"order-{number}", agent="checkout"):
            answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(number)}])
            return answer.choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(40))) == ["Yes."] * 40
    by_trajectory: dict[str, list[Note]] = {}
    for note in notes:
        by_trajectory.setdefault(note.trajectory_id, []).append(note)
    assert len(by_trajectory) == 40
    for found in by_trajectory.values():
        assert kinds(found) == ["trajectory.started", "model.called", "trajectory.ended"]
        assert found[0].fields["task_id"] == f"order-{found[1].fields['messages'][0]['content']}"
    assert headrace.stats.dropped == {}


def test_a_conversation_that_cannot_be_sent_fails_as_without_headrace(
    headrace: Headrace, client: openai.OpenAI, endpoint: Endpoint, notes: list[Note]
) -> None:
    loop: dict[str, Any] = {"content": "x"}
    loop |= {"parent": loop, "children": [loop, loop]}
    plain = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0)
    errors = []
    for each in (plain, client):
        for odd in (loop, object(), {1, 2}):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever the library raises
                each.chat.completions.create(model="m", messages=[{**ASK, "place": odd}])
            errors.append((type(raised.value), str(raised.value)))
    assert errors[3:] == errors[:3]
    assert [called["finish_reason"] for called in calls(notes)] == ["error"] * 3
    assert endpoint.requests == []
