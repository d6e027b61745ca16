"""Tests of LiteLLM, which ``test_litellm.py`` runs in a process of their own."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import litellm
import pytest

from headrace.agents.adapters.litellm import HeadraceLogger
from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.adapters.scripted import SEARCH, Endpoint, Reply, chat, message
from tests.agents.adapters.shop import ANSWER, by_trajectory, chat_shop, fields_of
from tests.agents.sdk_helpers import kinds, until

TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("search", "stock")
]
RUN = ["model.called", "tool.called", "tool.returned"] * 2 + ["model.called"]
SYSTEM = {"role": "system", "content": "You sell boots."}


@pytest.fixture(autouse=True)
def logger(headrace: Headrace) -> Iterator[HeadraceLogger]:
    logger = HeadraceLogger(headrace, agent="checkout")
    lists = (litellm.callbacks, litellm.input_callback, litellm.success_callback, litellm.failure_callback)
    asynchronous = (litellm._async_success_callback, litellm._async_failure_callback)
    litellm.callbacks.append(logger)
    yield logger
    for each in (*lists, *asynchronous):
        each.clear()
    assert not logger._open
    assert headrace.stats.dropped == {}


def ask(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    endpoint.model = endpoint.model or chat_shop
    return {"model": "openai/policy", "api_base": endpoint.url, "api_key": "none", "max_retries": 0} | more


def question(size: str) -> list[dict[str, Any]]:
    return [SYSTEM, {"role": "user", "content": f"boots in {size}?"}]


def results(said: dict[str, Any]) -> list[dict[str, Any]]:
    """What the program's tools answer."""
    return [
        {"role": "tool", "tool_call_id": each["id"], "content": f"boots {each['function']['arguments']}"}
        for each in said["tool_calls"]
    ]


async def run_async(server: dict[str, Any], size: str, stream: bool) -> str:
    """Run an agent to its answer; ``server``: arguments of each call."""
    messages = question(size)
    while True:
        answer = await litellm.acompletion(**server, messages=messages, tools=TOOLS, stream=stream)
        if stream:
            answer = litellm.stream_chunk_builder([chunk async for chunk in answer])
        said = answer.choices[0].message.model_dump()
        if not said.get("tool_calls"):
            return str(said["content"])
        messages += [said, *results(said)]


def run_sync(server: dict[str, Any], size: str) -> str:
    """Run an agent to its answer; ``server``: arguments of each call."""
    messages = question(size)
    while True:
        said = litellm.completion(**server, messages=messages, tools=TOOLS).choices[0].message.model_dump()
        if not said.get("tool_calls"):
            return str(said["content"])
        messages += [said, *results(said)]


def assert_run(notes: list[Note], size: str) -> None:
    assert kinds(notes) == RUN
    assert [each["tool"] for each in fields_of(notes, "tool.called")] == ["search", "stock"]
    assert all(each["result"] == f'boots {{"query": "{size}"}}' for each in fields_of(notes, "tool.returned"))
    first, second, last = fields_of(notes, "model.called")
    assert [each["role"] for each in first["messages"]] == ["system", "user", "assistant"]
    assert first["messages"][1]["content"] == f"boots in {size}?"
    assert [each["role"] for each in second["messages"]] == ["tool", "assistant"]
    assert last["messages"][-1]["content"] == f"{ANSWER} {size}"
    assert (first["finish_reason"], last["finish_reason"]) == ("tool_calls", "stop")
    assert last["usage"].prompt_tokens == 9
    assert json.dumps(first["messages"]).count("boots in") == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_two_conversations_at_a_time(
    stream: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    async def run(size: str) -> None:
        async with headrace.trajectory(task_id=f"order-{size}", agent="checkout"):
            assert await run_async(ask(endpoint), size, stream) == f"{ANSWER} {size}"

    await asyncio.gather(run("44"), run("46"))
    async with asyncio.timeout(20):
        while len(notes) < 2 * (len(RUN) + 2):  # noqa: ASYNC110 - LiteLLM reports streams when it likes
            await asyncio.sleep(0.01)
    for size, own in zip(("44", "46"), by_trajectory(notes), strict=True):
        assert_run(sorted(own, key=lambda note: note.seq or 0)[1:-1], size)


async def test_a_stream_has_its_place_although_it_is_reported_after_the_end(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        stream = litellm.completion(**ask(endpoint, messages=question("44"), stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == f"{ANSWER} 44"
    until(lambda: len(notes) == 3)
    assert sorted((note.seq, *kinds([note])) for note in notes) == [
        (0, "trajectory.started"),
        (1, "model.called"),
        (2, "trajectory.ended"),
    ]


def test_synchronous_calls_are_recorded_before_they_return(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        assert run_sync(ask(endpoint), "44") == f"{ANSWER} 44"
    assert_run(notes[1:-1], "44")


def test_a_synchronous_stream_is_recorded_after_its_end(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    stream = litellm.completion(**ask(endpoint, messages=question("44"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == f"{ANSWER} 44"
    until(lambda: len(notes) == 2)
    assert kinds(notes) == ["trajectory.started", "model.called"]  # of the conversation's own trajectory
    assert notes[0].fields["inferred"] is True
    assert notes[1].fields["messages"] == [*question("44"), {"role": "assistant", "content": f"{ANSWER} 44"}]


@pytest.mark.parametrize("is_async", [False, True])
async def test_errors(is_async: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]) -> None:
    asked = ask(endpoint, messages=[{"role": "user", "content": "this fails"}])
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        if is_async:
            with pytest.raises(litellm.BadRequestError):
                await litellm.acompletion(**asked)
        else:
            with pytest.raises(litellm.BadRequestError):
                litellm.completion(**asked)
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert notes[1].fields["finish_reason"] == "error"
    assert notes[1].fields["error"].kind is litellm.BadRequestError


@pytest.mark.parametrize("is_async", [False, True])
async def test_another_provider(is_async: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]) -> None:
    endpoint.model = lambda body: Reply(message({"type": "text", "text": ANSWER}))
    asked = ask(endpoint, messages=question("44")) | {"model": "anthropic/claude-5"}
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        if is_async:
            await litellm.acompletion(**asked)
        else:
            litellm.completion(**asked)
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert notes[1].fields["messages"] == [*question("44"), {"role": "assistant", "content": ANSWER}]


def test_a_synchronous_answer_in_another_form_has_its_place_although_it_is_reported_after_the_end(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note], logger: HeadraceLogger
) -> None:
    said = {"content": {"role": "model", "parts": [{"text": ANSWER}]}, "finishReason": "STOP"}
    endpoint.model = lambda body: Reply({"candidates": [said], "usageMetadata": {"promptTokenCount": 9}})
    ended, told = threading.Event(), logger.log_success_event

    def late_and_twice(**report: Any) -> None:
        assert ended.wait(20)
        told(**report)
        told(**report)

    logger.log_success_event = late_and_twice  # type: ignore[method-assign]
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        litellm.completion(**ask(endpoint, messages=question("44")) | {"model": "gemini/gemini-2.0-flash"})
    ended.set()
    until(lambda: len(notes) == 3)
    assert [(note.seq, *kinds([note])) for note in notes] == [
        (0, "trajectory.started"),
        (2, "trajectory.ended"),
        (1, "model.called"),
    ]
    assert notes[2].fields["messages"][-1] == {"role": "assistant", "content": ANSWER}


ODD = {
    "no_choices": lambda body: Reply(chat("x") | {"choices": []}),
    "no_content": lambda body: Reply(chat(None)),
    "wrong_arguments": lambda body: Reply(chat(None, SEARCH | {"function": {"name": "search", "arguments": "{"}})),
    "wrong_usage": lambda body: Reply(chat("x") | {"usage": {"prompt_tokens": -3, "completion_tokens": 10**12}}),
    "huge": lambda body: Reply(chat("x" * 3_000_000)),
    "no_json": lambda body: Reply("hello"),
    "refused": lambda body: Reply({"error": {"message": "wrong key"}}, status=401),
}
FAILURES = (litellm.InternalServerError, litellm.AuthenticationError)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("odd", ODD)
async def test_odd_answers_are_recorded_and_no_key_is(
    odd: str, is_async: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    key = "zq-0123456789"
    endpoint.model = ODD[odd]
    asked = ask(endpoint, messages=question("44"), tools=TOOLS, extra_headers={"x-key": key}, metadata={"key": key})
    with (
        headrace.trajectory(task_id="order-17", agent="checkout"),
        suppress(*FAILURES),
    ):
        if is_async:
            await litellm.acompletion(**asked | {"api_key": key})
        else:
            litellm.completion(**asked | {"api_key": key})
    assert fields_of(notes, "model.called")[0]["messages"][:2] == question("44")
    assert [note.seq for note in notes] == [*range(len(notes))]
    for note in notes:
        error = note.fields.get("error")
        assert key not in f"{note.fields} {'' if error is None else error.arguments}"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("of_call", [False, True])
async def test_messages_that_loggers_are_not_to_see_are_not_recorded(
    of_call: bool,
    is_stream: bool,
    headrace: Headrace,
    endpoint: Endpoint,
    notes: list[Note],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(litellm, "turn_off_message_logging", not of_call)
    asked = ask(endpoint, messages=question("44"), tools=TOOLS, stream=is_stream)
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        answer = await litellm.acompletion(**asked, **({"turn_off_message_logging": True} if of_call else {}))
        if is_stream:
            async for _ in answer:
                pass
    async with asyncio.timeout(20):
        while len(notes) < 3:  # noqa: ASYNC110 - LiteLLM reports streams when it likes
            await asyncio.sleep(0.01)
    assert sorted(kinds(notes)) == ["model.called", "trajectory.ended", "trajectory.started"]
    (called,) = fields_of(notes, "model.called")
    assert (called.get("messages"), called["usage"].prompt_tokens) == (None, 9)


async def test_a_gateway_s_calls_are_named_and_not_recorded(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    def gateway(body: dict[str, Any]) -> Reply:
        headers = {"x-headrace-session": "s", "x-headrace-trajectory": "019-main", "x-headrace-outcome": "continuation"}
        reply = chat_shop(body)
        return Reply(reply.body, headers=headers)

    endpoint.model = gateway
    with headrace.gateway_session("thread-7") as session:
        litellm.completion(**ask(endpoint, messages=question("44"), extra_headers=session.headers))
        assert session.trajectory_id == "019-main"
        for stream in (False, True):
            await run_async(ask(endpoint), "44", stream)
    assert {headers.get("x-session-id") for headers, _ in endpoint.requests} == {"thread-7"}
    litellm.completion(**ask(endpoint, messages=question("44")))  # it has the gateway's headers
    await run_async(ask(endpoint), "44", stream=False)
    await run_async(ask(endpoint), "44", stream=True)
    assert notes == []


async def test_a_recording_that_fails_does_not_reach_the_program(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.agents.adapters import litellm as adapter

    monkeypatch.setattr(adapter, "read_answer", None)
    assert run_sync(ask(endpoint), "44") == f"{ANSWER} 44"
    assert await run_async(ask(endpoint), "44", stream=False) == f"{ANSWER} 44"
    assert notes == []
    assert headrace.stats.dropped == {"internal": 6}
    headrace._sender.counters = type(headrace._sender.counters)()
