"""Judges over HTTP: faults become labels, and a real vLLM answers on the scale."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from headrace.streams.rewards.judge import Judge, Reply, Rubric
from headrace.streams.rewards.judge_client import JudgeClient
from headrace.streams.rewards.judge_question import Question, questions
from headrace.streams.rewards.judge_verdict import ERROR, TIMEOUT, UNREADABLE, Answer, verdict
from tests.conftest import Engine
from tests.local_server import serving
from tests.streams.attempts import attempt
from tests.streams.judged_rewards import HELPFUL

JUDGE = Judge("helpful", (Rubric("task", "The task is done."),), model="m", timeout_s=5)
LONG_S = 60.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def completion(text: Any, finish_reason: str = "stop") -> web.Response:
    return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": finish_reason}]})


def asked(count: int = 1, **fields: Any) -> list[Question]:
    judge = replace(JUDGE, **fields)
    return [question for number in range(count) for question in questions(judge, attempt("t", answer=str(number)))]


@asynccontextmanager
async def client_of(handler: Handler, **options: Any) -> AsyncIterator[JudgeClient]:
    """A client of a server whose every answer is ``handler``'s."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    async with (
        serving(app, shutdown_timeout=0.1) as url,
        JudgeClient(f"{url}/v1", pause_s=0.01, **options) as client,
    ):
        yield client


async def test_an_answer_is_what_the_model_wrote() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        return completion('{"score": 4}')

    async with client_of(handler, key="secret") as client:
        assert await client.ask(asked(3), within_s=LONG_S) == [Answer("task", '{"score": 4}')] * 3
        assert await client.ask([], within_s=LONG_S) == []


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_or_failing_endpoint_is_retried(status: int) -> None:
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=status) if calls < 3 else completion("5")

    async with client_of(handler) as client:
        assert await client.ask(asked(attempts=3), within_s=LONG_S) == [Answer("task", "5")]
    assert calls == 3


async def test_an_endpoint_that_keeps_failing_is_an_error_after_its_attempts() -> None:
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=500)

    async with client_of(handler) as client:
        assert await client.ask(asked(attempts=2), within_s=LONG_S) == [Answer("task", None, ERROR)]
    assert calls == 2


async def test_a_refusal_is_an_immediate_error_and_the_key_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=401, text=f"bad key: {request.headers['Authorization']}")

    with caplog.at_level(logging.DEBUG):
        async with client_of(handler, key="sk-secret") as client:
            assert await client.ask(asked(), within_s=LONG_S) == [Answer("task", None, ERROR)]
    assert calls == 1
    assert "401" in caplog.text
    assert "sk-secret" not in caplog.text


async def test_an_unreachable_endpoint_is_an_error() -> None:
    async with JudgeClient("http://127.0.0.1:1") as client:
        assert await client.ask(asked(attempts=1), within_s=LONG_S) == [Answer("task", None, ERROR)]


async def test_a_call_that_takes_too_long_is_a_timeout() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(LONG_S)
        return completion("5")

    async with client_of(handler) as client:
        assert await client.ask(asked(attempts=1, timeout_s=0.2), within_s=LONG_S) == [Answer("task", None, TIMEOUT)]


async def test_unanswered_questions_time_out_and_answered_ones_count() -> None:
    async def handler(request: web.Request) -> web.Response:
        if '\\"1\\"' in await request.text():
            await asyncio.sleep(LONG_S)
        return completion("5")

    async with client_of(handler) as client:
        answers = await client.ask(asked(3), within_s=1.0)
    assert answers == [Answer("task", "5"), Answer("task", None, TIMEOUT), Answer("task", "5")]


@pytest.mark.parametrize(
    "response",
    [
        lambda: web.Response(text="<html>"),
        lambda: web.json_response({}),
        lambda: web.json_response({"choices": []}),
        lambda: web.json_response({"choices": [{"message": None}]}),
        lambda: completion(None),
        lambda: completion('{"score": 4}', finish_reason="length"),
        lambda: web.Response(body=b"[" * 2_000_000),
    ],
    ids=["html", "empty", "no choices", "no message", "no text", "cut off", "endless"],
)
async def test_a_response_that_is_no_completion_is_unreadable(response: Callable[[], web.Response]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return response()

    async with client_of(handler) as client:
        assert await client.ask(asked(), within_s=LONG_S) == [Answer("task", None, UNREADABLE)]


async def test_structured_output_is_dropped_for_servers_without_it() -> None:
    structured = []

    async def handler(request: web.Request) -> web.Response:
        structured.append("response_format" in await request.json())
        return web.Response(status=400, text="unknown: response_format") if structured[-1] else completion("5")

    async with client_of(handler, concurrency=1) as client:
        assert await client.ask(asked(2), within_s=LONG_S) == [Answer("task", "5")] * 2
    assert structured == [True, False, False]


async def test_no_more_calls_are_in_flight_than_allowed() -> None:
    in_flight = most = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.02)
        in_flight -= 1
        return completion("5")

    async with client_of(handler, concurrency=3) as client:
        assert len(await client.ask(asked(12), within_s=LONG_S)) == 12
    assert most == 3


async def test_a_redirect_is_not_followed() -> None:
    async def handler(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with client_of(handler) as client:
        assert await client.ask(asked(), within_s=LONG_S) == [Answer("task", None, ERROR)]


@pytest.mark.vllm
async def test_a_real_vllm_answers_on_the_scale(vllm: Engine) -> None:
    trajectory = attempt("t", task={"question": "what is the home of ada ?"}, answer="ghent")
    async with JudgeClient(vllm.url) as client:
        found = verdict(HELPFUL, await client.ask(questions(HELPFUL, trajectory), within_s=LONG_S))
    assert found.label is None
    assert found.value is not None
    assert 0.0 <= found.value <= 1.0
    assert found.details.keys() == {"task", "user", "disagreement"}
    assert json.loads(json.dumps(dict(found.details)))


@pytest.mark.vllm
async def test_nonsense_of_a_real_vllm_is_unreadable(vllm: Engine) -> None:
    unbound = replace(HELPFUL, reply=Reply.NUMBER, max_tokens=20)
    async with JudgeClient(vllm.url) as client:
        client._unstructured.add((unbound.model, unbound.endpoint))
        answers = await client.ask(questions(unbound, attempt("t", answer="ghent")), within_s=LONG_S)
    assert verdict(unbound, answers).label == UNREADABLE
