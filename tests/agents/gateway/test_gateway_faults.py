"""Engines that fail, and bugs: each API's own error, nothing is recorded twice, and a retry is answered."""

import asyncio
import dataclasses
from array import array
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.agents.gateway.calls import Calls
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.engine_choice import EngineChoice
from headrace.agents.gateway.framing.chat import ChatFramer
from headrace.agents.gateway.gateway import GatewayUnusable, run_gateway
from tests.agents.gateway.http_clients import ALL, ChatHttp, HttpClient
from tests.agents.gateway.running import (
    RunningGateway,
    assert_exact,
    calls_in,
    exact_calls,
    recorded_in,
    running_gateway,
)
from tests.agents.gateway.scripted_engine import Fault, Reply, answering, echoed, is_probe

STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
RETRY = {"x-stainless-retry-count": "1"}
WORDS = "one two three four five six seven eight nine ten eleven twelve"

FAULTS_BEFORE = {
    Fault.REFUSED: 400,
    Fault.STATUS_500: 500,
    Fault.STATUS_503: 503,
    Fault.HANG_UP: 503,
    Fault.HANG: 503,
    Fault.MISSING_LOGPROB: 500,
}
FAULTS_WITHIN = [
    Fault.SILENCE, Fault.CUT, Fault.NO_FINISH, Fault.ERROR_IN_STREAM, Fault.WRONG_USAGE, Fault.LOST_CHUNK,
]  # fmt: skip


def test_every_fault_is_tried() -> None:
    assert {*FAULTS_BEFORE, *FAULTS_WITHIN, Fault.WRONG_ECHO, Fault.WRONG_START} == set(Fault)


@pytest.fixture
def tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that failed are not left out for a while."""
    monkeypatch.setattr(EngineChoice, "failed", lambda *_: None)


async def post(gateway: RunningGateway, client: HttpClient) -> tuple[int, Any]:
    return await gateway.post(client.path, client.body())


@STREAMED
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.usefixtures("tried_again")
async def test_faults_before_the_first_byte_are_errors_with_a_status(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    for fault, status in FAULTS_BEFORE.items():
        folder = tmp_path / fault
        async with (
            answering(Reply(WORDS, fault=fault), "fine", "last") as engine,
            running_gateway(folder, [engine.url], engine_timeout_s=1.0) as gateway,
        ):
            client = kind(gateway, streams=streams).say("hi")
            found, answer = await post(gateway, client)
            assert found == (529 if status == 503 and client.api is Api.MESSAGES else status), (fault, answer)
            assert answer["error"]["message"]
            assert (status == 503) == ("Retry-After" in gateway.headers)
            assert gateway.calls_in_flight == 0
            answered = await client.ask(headers=RETRY)
            assert answered.texts == ("fine",)
        (call,) = calls_in(recorded_in(folder))
        assert call.sampled_ids == array("i", engine.sampled[1])


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.usefixtures("tried_again")
async def test_faults_within_a_stream_are_error_events(tmp_path: Path, kind: type[HttpClient]) -> None:
    for fault in FAULTS_WITHIN:
        folder = tmp_path / fault
        async with (
            answering(Reply(WORDS, fault=fault, chunk_delay_s=0.03), "fine", "last") as engine,
            running_gateway(folder, [engine.url], engine_timeout_s=1.0) as gateway,
        ):
            client = kind(gateway, streams=True).say("hi")
            status, text = await post(gateway, client)
            assert status == 200
            assert error_event(client.api, text), (fault, text)
            assert gateway.calls_in_flight == 0
            assert (await client.ask(headers=RETRY)).texts == ("fine",), fault
        aborted, call = calls_in(recorded_in(folder))
        assert (aborted.finish_reason, aborted.sampled_ids) == ("abort", array("i"))
        assert call.sampled_ids == array("i", engine.sampled[1])


def error_event(api: Api, text: str) -> bool:
    """Whether a stream ends with an error, and never claims to be complete."""
    last = text.rstrip().rsplit("\n\n", 1)[-1]
    ends = ("[DONE]", "message_stop", "response.completed", "response.incomplete")
    sign = {Api.MESSAGES: "event: error\n", Api.RESPONSES: "event: response.failed\n"}.get(api, 'data: {"error":')
    return last.startswith(sign) and not any(end in text for end in ends)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.usefixtures("tried_again")
async def test_faults_of_an_engine_are_errors_of_a_whole_answer(tmp_path: Path, kind: type[HttpClient]) -> None:
    for fault in FAULTS_WITHIN:
        folder = tmp_path / fault
        async with (
            answering(Reply(WORDS, fault=fault), "fine") as engine,
            running_gateway(folder, [engine.url], engine_timeout_s=1.0) as gateway,
        ):
            client = kind(gateway).say("hi")
            status, answer = await post(gateway, client)
            assert status >= 500, (fault, answer)
            assert gateway.calls_in_flight == 0
            assert (await client.ask(headers=RETRY)).texts == ("fine",), fault
        *aborted, call = calls_in(recorded_in(folder))
        assert [(each.finish_reason, each.sampled_ids) for each in aborted] in ([], [("abort", array("i"))])
        assert call.sampled_ids == array("i", engine.sampled[1])


@pytest.mark.parametrize(("fault", "segments"), [(Fault.WRONG_ECHO, 1), (Fault.WRONG_START, 2)])
async def test_the_log_has_the_prompt_that_the_engine_continued(tmp_path: Path, fault: Fault, segments: int) -> None:
    async with (
        answering("One.", Reply("Two.", fault=fault), "Three.") as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        client = ChatHttp(gateway)
        for text in ("a", "b", "c"):
            await client.turn(text)
        sent = [each["token_ids"] for each in engine.requests if not is_probe(each)]
    calls = exact_calls(recorded_in(tmp_path))
    given = echoed(sent[1], fault)
    assert [each.prompt_ids.tolist() for each in calls] == [sent[0], given, sent[2]]
    assert sent[2][: len(given)] == given  # the next turn continues what the engine has
    assert sum(each.starts_segment for each in calls) == segments


async def test_an_answer_that_the_engine_aborts_is_incomplete_and_not_trained(tmp_path: Path) -> None:
    async with (
        answering(Reply("One two", finish_reason="abort"), "Three.") as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        client = ChatHttp(gateway)
        assert await client.turn("a") == "One two"
        assert await client.turn("b") == "Three."
    events = recorded_in(tmp_path)
    first, _ = calls_in(events)
    assert (first.finish_reason, first.sampled_ids) == ("abort", array("i"))
    assert assert_exact(events) == 1


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_another_engine_takes_over_before_the_first_byte(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    async with answering(Reply(fault=Fault.STATUS_503)) as ill, answering("fine") as well:
        for number in range(24):  # whichever is first for a conversation
            async with running_gateway(tmp_path / str(number), [ill.url, well.url]) as gateway:
                client = kind(gateway, streams=streams).say(f"question {number}")
                assert (await client.ask()).texts == ("fine",)
            if ill.requests:
                break
        assert ill.requests


async def test_a_bug_is_an_error_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(Calls, "answer", broken)
            status, answer = await gateway.post("/v1/messages", {})
            assert (status, answer["error"]["type"]) == (500, "api_error")
        assert (await ChatHttp(gateway).say("hi").ask()).texts == ("fine",)


async def test_a_bug_within_a_stream_cuts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError

    async with answering(WORDS, "fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, streams=True).say("hi")
        with monkeypatch.context() as patch:
            patch.setattr(ChatFramer, "terminal", broken)
            with pytest.raises(aiohttp.ClientPayloadError):
                await post(gateway, client)
        assert gateway.calls_in_flight == 0
        assert (await client.ask(headers=RETRY)).texts == ("fine",)


@pytest.mark.usefixtures("tried_again")
async def test_an_engine_that_comes_back_with_other_log_probabilities(tmp_path: Path) -> None:
    first, second = Reply("one", logprob=0.0), Reply("two", logprob=-0.5)
    broken = Reply(WORDS, fault=Fault.CUT, logprob=0.0)
    async with answering(first, broken, second) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        for number, status in enumerate((200, 503, 200)):
            client = ChatHttp(gateway, f"/s/{number}", fields={"temperature": 0.7}).say("hi")
            assert (await post(gateway, client))[0] == status
    recorded = {call.logprobs[0]: call.sampling.logprobs for call in calls_in(recorded_in(tmp_path)) if call.logprobs}
    assert recorded == {0.0: "processed", -0.5: "raw"}


async def test_a_taken_port_is_reported_with_its_setting(tmp_path: Path) -> None:
    async with answering() as engine, running_gateway(tmp_path / "first", [engine.url]) as first:
        config = dataclasses.replace(first.config, folder=tmp_path / "second")
        with pytest.RaisesGroup(
            pytest.RaisesExc(GatewayUnusable, match=rf"{config.port}.*HEADRACE_GATEWAY_PORT"), flatten_subgroups=True
        ):
            await run_gateway(config, stop=asyncio.Event(), ready=lambda: None)
