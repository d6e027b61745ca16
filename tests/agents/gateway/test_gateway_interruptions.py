"""Clients that hang up, clients that ask again, and a gateway that stops: what was sampled is recorded once, and what
follows is exact."""

import asyncio
import json
import socket
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.agents.gateway import gateway as gateway_process
from headrace.agents.gateway import http
from headrace.agents.gateway.journal import Journal
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.schemas.events import ModelCalled
from tests.agents.gateway.http_clients import ALL, CONVERSATIONS, ChatHttp, HttpClient
from tests.agents.gateway.running import assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import Fault, Reply, ScriptedEngine, answering, until

STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
RETRY = {"x-stainless-retry-count": "1"}
WORDS = "one two three four five six seven eight nine ten eleven twelve"

BEGUN = Reply(WORDS, fault=Fault.SILENCE)
"""An answer of which the first four words arrive."""


async def hang_up(client: HttpClient, when: Callable[[bytes], bool]) -> bytes:
    """Send the client's request and close the connection once ``when`` holds for what arrived; return that."""
    gateway, received = client.gateway, bytearray()

    async def receive() -> None:
        async with session.post(gateway.url + client.path, json=client.body(), headers=client.headers) as response:
            async for data in response.content.iter_any():
                received.extend(data)

    async with aiohttp.ClientSession() as session:
        receiving = asyncio.create_task(receive())
        await until(lambda: when(bytes(received)))
        receiving.cancel()
        await asyncio.wait([receiving])
    await until(lambda: gateway.calls_in_flight == 0)
    return bytes(received)


def sampled_once(engine: ScriptedEngine, calls: Sequence[ModelCalled]) -> None:
    """Each of the engine's answers is recorded exactly once, as sampled tokens or as the part that arrived."""
    assert len(calls) == len(engine.sampled)
    for call, sampled in zip(calls, engine.sampled, strict=True):
        assert call.sampled_ids is not None
        assert call.context_ids is not None
        if call.finish_reason == "abort":
            assert call.sampled_ids == array("i")
        else:
            assert call.sampled_ids == array("i", sampled)


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_a_client_that_leaves_before_the_first_byte(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    async with answering(Reply(fault=Fault.HANG), "fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams).say("hi")
        await hang_up(client, lambda _: engine.running == 1)
        await until(lambda: engine.running == 0)
        assert engine.aborted == 1
        assert (await client.ask()).texts == ("fine",)
        assert gateway.headers["x-headrace-outcome"] == "new_trajectory"
    (call,) = calls_in(recorded_in(tmp_path))
    assert call.finish_reason == "stop"


@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_a_client_that_leaves_in_the_middle_of_a_stream_can_go_on(tmp_path: Path, kind: type[HttpClient]) -> None:
    async with answering("Go.", BEGUN, "resumed", "last") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway)
        await client.turn("Begin.")
        client.say("Count.")
        client.streams = True
        await hang_up(client, lambda received: b"three" in received)
        await until(lambda: engine.running == 0)
        assert engine.aborted == 1
        assert await client.turn("No, stop.") == "resumed"
        assert await client.turn("And now?") == "last"
    events = recorded_in(tmp_path)
    _, aborted, *after = calls_in(events)
    assert (aborted.finish_reason, aborted.delivered, aborted.sampled_ids) == ("abort", False, array("i"))
    assert aborted.context_ids is not None
    assert aborted.context_ids[-BEGUN.chunk_tokens :].tolist() == engine.sampled[1][: BEGUN.chunk_tokens]
    assert [each.finish_reason for each in after] == ["stop", "stop"]
    assert assert_exact(events) == 2  # the client dropped what it had of the answer: a fork
    sampled_once(engine, calls_in(events))


async def test_a_client_that_leaves_has_used_its_tokens(tmp_path: Path) -> None:
    async with (
        answering(BEGUN, "fine") as engine,
        running_gateway(tmp_path, [engine.url], tokens_per_s=0.01) as gateway,
    ):
        client = ChatHttp(gateway, streams=True).say("Count.")
        await hang_up(client, lambda received: b"three" in received)
        await until(lambda: engine.running == 0)
        status, answer = await gateway.post(client.path, client.body())
        assert (status, "its tokens per second" in answer["error"]["message"]) == (429, True)


async def test_a_client_that_keeps_a_part_of_an_answer_continues_its_tokens(tmp_path: Path) -> None:
    async with answering(BEGUN, "resumed") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, streams=True).say("Count.")
        await hang_up(client, lambda received: b"three" in received)
        (node,) = gateway.server._capture._nodes
        client.transcript.append({"role": "assistant", "content": node.answer.message.text})
        assert await client.turn("Continue.") == "resumed"
        assert gateway.headers["x-headrace-outcome"] == "continuation"
    events = recorded_in(tmp_path)
    assert assert_exact(events) == 1
    known = len(node.answer.sampled_ids)
    assert known == BEGUN.chunk_tokens
    first = engine.requests[0]["token_ids"] + engine.sampled[0][:known]
    assert engine.requests[1]["token_ids"][: len(first)] == first


class SlowJournal:
    """Events of answers are written only once they may be."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.may_write = asyncio.Event()
        self.waiting = 0
        write = Journal.record

        async def record(journal: Journal, events: Sequence[TrajectoryEvent], now_ms: int) -> bool:
            if any(isinstance(each.fact, ModelCalled) for each in events):
                self.waiting += 1
                async with asyncio.timeout(20):
                    await self.may_write.wait()
            return await write(journal, events, now_ms)

        patch.setattr(Journal, "record", record)


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_a_client_that_leaves_before_the_terminal_event_gets_the_answer_when_it_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HttpClient], streams: bool
) -> None:
    journal = SlowJournal(monkeypatch)
    async with answering("a whole answer", "another") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams).say("hi")
        if streams:
            received = await hang_up(client, lambda received: b"answer" in received)
            ends = (b"[DONE]", b"message_stop", b"response.completed", b'"finish_reason":"')
            assert not any(end in received for end in ends)
        else:
            await hang_up(client, lambda _: journal.waiting == 1)
        assert journal.waiting == 1
        journal.may_write.set()
        assert (await client.ask(headers=RETRY)).texts == ("a whole answer",)
        assert gateway.headers["x-headrace-outcome"] == "replay"
    assert len(engine.requests) == 1
    sampled_once(engine, calls_in(recorded_in(tmp_path)))


@STREAMED
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_a_retry_of_a_lost_answer_receives_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HttpClient], streams: bool
) -> None:
    async with answering("First.", "Second.", "Third.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams)
        await client.turn("a")
        client.say("b")
        first = await client.ask()
        before = ids_in(client.received)
        again = await client.ask(headers=RETRY)
        assert again == first
        assert ids_in(client.received) == before
        assert len(engine.requests) == 2
        client.keep(again)
        assert await client.turn("c") == "Third."
    events = recorded_in(tmp_path)
    assert assert_exact(events) == 1
    sampled_once(engine, calls_in(events))


def ids_in(data: bytes) -> set[bytes]:
    """Ids of answers."""
    return {part.split(b'"', 1)[0] for part in data.split(b'"id":"')[1:]}


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_of_answers_that_arrived_a_retry_receives_the_latest(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    async with answering("One.", "Two.", "Three.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams)
        client.say("a")
        assert [(await client.ask()).texts for _ in range(2)] == [("One.",), ("Two.",)]
        assert (await client.ask(headers=RETRY)).texts == ("Two.",)
    assert len(calls_in(recorded_in(tmp_path))) == 2


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_a_retry_while_the_call_is_in_flight_waits_for_it(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    slow = Reply(WORDS, chunk_tokens=2, chunk_delay_s=0.05)
    async with answering(slow, "another") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams).say("Count.")
        second = kind(gateway, streams=streams).say("Count.")
        first = asyncio.create_task(client.ask())
        await until(lambda: engine.running == 1)
        assert await second.ask(headers=RETRY) == await first
    assert len(engine.requests) == 1
    assert len(calls_in(recorded_in(tmp_path))) == 1


async def test_a_retry_that_displaces_a_session_records_its_end(tmp_path: Path) -> None:
    slow = Reply(WORDS, chunk_tokens=1, chunk_delay_s=0.02)
    async with answering(slow) as engine, running_gateway(tmp_path, [engine.url], max_sessions=1) as gateway:
        first, second = (ChatHttp(gateway, base=f"/s/{name}").say("hi") for name in ("first", "second"))
        asking = [asyncio.create_task(first.ask())]
        await until(lambda: engine.running == 1)
        asking.append(asyncio.create_task(second.ask()))
        await asking[0]
        assert gateway.sessions == 2  # one too many, as long as both have a call in flight
        await second.ask(headers=RETRY)
        await asking[1]
        assert (gateway.headers["x-headrace-outcome"], gateway.sessions) == ("replay", 1)
    events = recorded_in(tmp_path)
    assert [type(each.fact).__name__ for each in events if each.trajectory_id == events[0].trajectory_id] == [
        *("TrajectoryStarted", "ModelCalled", "TrajectoryEnded"),
    ]


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_a_retry_of_a_call_that_fails_meanwhile_is_sampled(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    """The first attempt's client leaves after its retry has arrived: no part of an answer counts as whole."""
    async with answering(BEGUN, "whole again") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams).say("Count.")
        async with aiohttp.ClientSession() as http:
            first = asyncio.create_task(http.post(gateway.url + client.path, json=client.body()))
            await until(lambda: engine.running == 1)
            await asyncio.sleep(0.3)
            second = asyncio.create_task(client.ask(headers=RETRY))
            await asyncio.sleep(0.2)
            first.cancel()
            await asyncio.wait([first])
            if not first.cancelled():
                first.result().close()
        assert (await second).texts == ("whole again",)
        assert gateway.calls_in_flight == 0
    assert len(engine.requests) == 2
    sampled_once(engine, sorted(calls_in(recorded_in(tmp_path)), key=lambda call: call.finish_reason or ""))


@STREAMED
async def test_a_gateway_that_stops_lets_calls_end(tmp_path: Path, streams: bool) -> None:
    slow = Reply(WORDS, chunk_tokens=2, chunk_delay_s=0.1)
    async with answering(slow) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, streams=streams).say("Count.")
        asking = asyncio.create_task(client.ask())
        await until(lambda: engine.running == 1)
        gateway.stop.set()
        assert (await asking).texts == (WORDS,)
    assert len(calls_in(recorded_in(tmp_path))) == 1


async def test_a_gateway_that_stops_records_the_part_of_a_call_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_process, "STOP_S", 0.2)
    async with (
        answering(Reply(WORDS, fault=Fault.SILENCE)) as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        client = ChatHttp(gateway, streams=True).say("Count.")
        async with gateway.http.post(gateway.url + client.path, json=client.body()) as response:
            assert b"one" in await response.content.readuntil(b"three")
            gateway.stop.set()
            with pytest.raises(aiohttp.ClientError):
                await response.content.read()
    (call,) = calls_in(recorded_in(tmp_path))
    assert (call.finish_reason, call.delivered) == ("abort", False)


class StalledClient:
    """A client that sends a request and reads nothing of its answer."""

    def __init__(self, client: HttpClient) -> None:
        body = json.dumps(client.body()).encode()
        head = f"POST {client.path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer k\r\nContent-Length: {len(body)}"
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", client.gateway.config.port))
        self.socket.sendall(f"{head}\r\n\r\n".encode() + body)


async def test_a_client_that_stops_reading_gives_its_engine_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "STALLED_S", 0.5)
    endless = Reply("word " * 4000, chunk_tokens=1)
    async with answering(endless, "fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, streams=True, fields={"n": 16}).say("hi")
        with closing(StalledClient(client).socket):
            await until(lambda: engine.aborted == 1)
            await until(lambda: gateway.calls_in_flight == 0)
        assert await ChatHttp(gateway, "/s/s2").turn("hello") == "fine"


@STREAMED
async def test_a_retry_does_not_wait_for_a_first_attempt_that_cannot_be_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    name = "end" if streams else "send"
    deliver, attempts = getattr(http.Outlet, name), list[http.Outlet]()

    async def stalled_at_first(outlet: http.Outlet, *parts: Any) -> None:
        attempts.append(outlet)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        await deliver(outlet, *parts)

    monkeypatch.setattr(http.Outlet, name, stalled_at_first)
    async with answering("once") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, streams=streams).say("hi")
        first = asyncio.create_task(client.ask())
        await until(lambda: len(attempts) == 1)
        async with asyncio.timeout(10):
            assert (await client.ask(headers=RETRY)).texts == ("once",)
        first.cancel()
        await asyncio.wait([first])
    assert len(engine.requests) == 1
    sampled_once(engine, calls_in(recorded_in(tmp_path)))
