"""The gateway's promise: a call that its client has received whole is on disk, whatever happens afterwards."""

import asyncio
import json
import os
import sys
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.journal import WhenFull
from headrace.agents.gateway.prompts import Prompts
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import SpooledRecord
from headrace.deploy.system.ports import free_port
from tests.agents.gateway.http_clients import ALL, ChatHttp, CompletionsHttp, HttpClient
from tests.agents.gateway.running import RunningGateway, assert_exact, calls_in, recorded, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import Reply, answering, until

STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
RETRY = {"x-stainless-retry-count": "1"}


class Disk:
    """The spool's disk, which can be full."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        append = Spool.append

        def appended(spool: Spool, records: Any, **how: Any) -> Any:
            return [] if self.is_full else append(spool, records, **how)

        patch.setattr(Spool, "append", appended)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_strict_a_full_spool_refuses_and_leaves_no_gap(
    tmp_path: Path, disk: Disk, kind: type[HttpClient], streams: bool
) -> None:
    async with answering("One.", "Two.", "Three.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams)
        disk.is_full = True
        client.say("a")
        for _ in range(2):
            status, answer = await gateway.post(client.path, client.body(), headers=RETRY)
            assert status == (529 if client.api is Api.MESSAGES else 503), answer
            assert int(gateway.headers["Retry-After"]) == 5
        disk.is_full = False
        client.keep(await client.ask(headers=RETRY))
        disk.is_full = True
        client.say("b")
        status, answer = await gateway.post(client.path, client.body())
        if status == 200:  # its text was on its way before the journal was asked
            assert streams
            assert "the gateway's spool is full" in answer
            assert not any(end in answer for end in ("[DONE]", "message_stop", "response.completed"))
        else:
            assert status == (529 if client.api is Api.MESSAGES else 503)
        disk.is_full = False
        client.keep(await client.ask(headers=RETRY))
        await client.turn("c")
        assert gateway.calls_in_flight == 0
    events = recorded_in(tmp_path)
    calls = calls_in(events)
    assert len(calls) == 3
    assert all(each.sampled_ids in [array("i", sampled) for sampled in engine.sampled] for each in calls)
    assert assert_exact(events) == (3 if kind is CompletionsHttp else 1)


async def refused_by_a_full(disk: Disk, gateway: RunningGateway) -> None:
    """A call is answered; the next one is refused, and its events wait, because the disk is full."""
    client = ChatHttp(gateway)
    await client.turn("a")
    disk.is_full = True
    client.say("b")
    assert (await gateway.post(client.path, client.body()))[0] == 503


async def test_strict_nothing_is_sampled_while_events_wait(tmp_path: Path, disk: Disk) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await refused_by_a_full(disk, gateway)
        sampled = len(engine.requests)
        for base in ("/s/s1", "/s/s2"):
            other = ChatHttp(gateway, base=base).say("c")
            assert (await gateway.post(other.path, other.body()))[0] == 503
        assert len(engine.requests) == sampled


async def test_open_a_full_spool_answers_and_counts_holes(tmp_path: Path, disk: Disk) -> None:
    async with (
        answering("One.", "Two.", "Three.") as engine,
        running_gateway(tmp_path, [engine.url], when_full=WhenFull.OPEN) as gateway,
    ):
        client = ChatHttp(gateway)
        await client.turn("a")
        disk.is_full = True
        assert await client.turn("b") == "Two."
        disk.is_full = False
        assert await client.turn("c") == "Three."
        assert gateway.server._recorder._journal.holes == 1
    assert [each.seq for each in recorded_in(tmp_path)] == [0, 1, 3]


async def test_what_waits_when_the_gateway_stops_is_written(tmp_path: Path, disk: Disk) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await refused_by_a_full(disk, gateway)
        assert gateway.server._recorder.waiting == 1
        disk.is_full = False
    events = recorded_in(tmp_path)
    assert [each.seq for each in events] == [0, 1, 2]
    assert assert_exact(events) == 1


async def test_what_was_refused_is_written_once_there_is_room(tmp_path: Path, disk: Disk) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await refused_by_a_full(disk, gateway)
        disk.is_full = False
        await until(lambda: gateway.server._recorder.waiting == 0)
    assert len(calls_in(recorded_in(tmp_path))) == 2


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_an_answer_is_complete_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HttpClient], streams: bool
) -> None:
    append, may_end = Spool.append, asyncio.Event()
    loop, written = asyncio.get_running_loop(), list[int]()

    def slow(spool: Spool, records: Any, **how: Any) -> Any:
        found = append(spool, records, **how)
        if any(b"sampled_ids" in (each.value or b"") for each in records):
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(20)
        written.append(len(records))
        return found

    monkeypatch.setattr(Spool, "append", slow)
    ends = (b"[DONE]", b"message_stop", b"response.completed", b'"finish_reason":"', b'"stop_reason":"')
    async with answering("a whole answer") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client, received = kind(gateway, streams=streams).say("hi"), bytearray()

        async def receive() -> None:
            async with gateway.http.post(gateway.url + client.path, json=client.body()) as response:
                async for data in response.content.iter_any():
                    received.extend(data)

        receiving = asyncio.create_task(receive())
        if streams:
            await until(lambda: b"answer" in received)
        await asyncio.sleep(0.2)
        assert not any(end in received for end in ends)
        assert streams or not received
        before = len(written)
        may_end.set()
        await receiving
        assert len(written) > before
        assert any(end in received for end in ends) or client.api is Api.RESPONSES


async def test_parallel_calls_of_a_session_are_recorded_once_each(tmp_path: Path) -> None:
    async with (
        answering(Reply("fine then", chunk_tokens=1, chunk_delay_s=0.01)) as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        clients = [ChatHttp(gateway, streams=bool(n % 2)).say(f"question {n % 8}") for n in range(64)]
        answers = await asyncio.gather(*(client.ask() for client in clients))
        assert {each.texts for each in answers} == {("fine then",)}
        assert (gateway.calls_in_flight, gateway.sessions) == (0, 1)
    events = recorded_in(tmp_path)
    assert len(calls_in(events)) == len(engine.requests) == 64
    assert_exact(events)
    for trajectory in {each.trajectory_id for each in events}:  # and in the order of their numbers
        numbers = [each.seq for each in events if each.trajectory_id == trajectory]
        assert numbers == list(range(len(numbers)))


NODE_BYTES = 400_000


async def test_memory_is_bounded_over_many_sessions(tmp_path: Path) -> None:
    async with (
        answering("fine then") as engine,
        running_gateway(tmp_path, [engine.url], node_bytes=NODE_BYTES, max_sessions=100) as gateway,
    ):

        async def session(number: int) -> None:
            client = ChatHttp(gateway, base=f"/s/{number}")
            for text in ("a", "b", "c"):
                await client.turn(f"{text} {number % 50}")

        for start in range(0, 480, 16):
            await asyncio.gather(*(session(number) for number in range(start, start + 16)))
            nodes = gateway.server._capture._nodes
            assert nodes.bytes <= NODE_BYTES
            assert gateway.sessions <= 100
        assert len(nodes) == sum(map(len, nodes._slots.values()))
        assert gateway.server._recorder.waiting == 0
        assert gateway.server._recorder._held == {}
    events = recorded_in(tmp_path)
    assert len(calls_in(events)) == 3 * 480
    assert assert_exact(events) == 480


GATEWAY = """
import asyncio, sys
from pathlib import Path
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.gateway import run_gateway

engine, port, folder = sys.argv[1:]
config = GatewayConfig(bootstrap="127.0.0.1:9", engines=(engine,), port=int(port), folder=Path(folder), flush_s=0.0)
asyncio.run(run_gateway(config, stop=asyncio.Event(), ready=lambda: print("ready", flush=True)))
"""


@asynccontextmanager
async def gateway_process(engine: str, folder: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A gateway in a process of its own, which can be killed."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY, engine, str(port), str(folder),
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n"
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_no_number_of_a_trajectory_waits_for_the_call_of_its_sub_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, compose, written = Spool.append, Prompts.compose, list[SpooledRecord]()
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    def appended(spool: Spool, records: Any, **how: Any) -> Any:
        found = append(spool, records, **how)
        written.extend(records)
        return found

    async def composed(prompts: Prompts, capture: Any, plan: Any, *rest: Any) -> Any:
        if plan.session.session_id == "slow":
            has_begun.set()
            await may_go_on.wait()
        return await compose(prompts, capture, plan, *rest)

    monkeypatch.setattr(Spool, "append", appended)
    monkeypatch.setattr(Prompts, "compose", composed)
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:

        async def ask(session: str, **parent: str) -> None:
            client = ChatHttp(gateway, base="", headers={"x-session-id": session} | parent).say(f"I am {session}")
            await client.ask()

        await ask("main")
        parent = {"x-parent-session-id": "main"}
        asking = asyncio.create_task(ask("slow", **parent))
        await has_begun.wait()
        await ask("fast", **parent)
        before = [recorded(each) for each in written]  # what a kill would leave now
        may_go_on.set()
        await asking
    main = [each.seq for each in before if each.trajectory_id == before[0].trajectory_id]
    assert main == [*range(4)]  # its start, its call, and the starts of both sub-agents


async def test_no_answer_that_arrived_is_lost_when_the_gateway_is_killed(tmp_path: Path) -> None:
    arrived: list[str] = []

    async def call(number: int, streams: bool) -> None:
        body = {"model": "policy", "stream": streams, "messages": [{"role": "user", "content": f"q {number}"}]}
        async with http.post(f"{url}/s/{number % 16}/v1/chat/completions", json=body) as response:
            data = await response.read()
            assert data.endswith(b"[DONE]\n\n") if streams else json.loads(data)
            arrived.append(response.headers["x-headrace-trajectory"] + f" {number}")
        if len(arrived) == 100:
            process.kill()

    async def worker(start: int) -> None:
        for number in range(start, 200, 16):
            await call(number, streams=bool(start % 2))

    async with (
        answering(Reply("fine then and there", chunk_tokens=1, chunk_delay_s=0.002)) as engine,
        gateway_process(engine.url, tmp_path) as (url, process),
        aiohttp.ClientSession() as http,
    ):
        ends = await asyncio.gather(*(worker(start) for start in range(16)), return_exceptions=True)
        assert all(isinstance(each, aiohttp.ClientError | None) for each in ends)
    assert 100 <= len(arrived) < 200
    events = recorded_in(tmp_path)
    asked = Counter(
        f"{each.trajectory_id} {str(message['content']).removeprefix('q ')}"
        for each in events
        for message in (getattr(each.fact, "messages", None) or [])[-2:-1]
    )
    assert asked.keys() >= set(arrived)
    assert set(asked.values()) == {1}
    assert_exact(events)


async def test_a_gateway_after_a_killed_one_continues_the_segment(tmp_path: Path) -> None:
    async with answering("One.", "Two.") as engine:
        async with gateway_process(engine.url, tmp_path) as (url, process), aiohttp.ClientSession() as http:
            body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "a"}]}
            async with http.post(f"{url}/s/s1/v1/chat/completions", json=body) as response:
                answer = (await response.json())["choices"][0]["message"]
            process.kill()
            await process.wait()
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            client = ChatHttp(gateway)
            client.transcript += [*body["messages"], {"role": "assistant", "content": answer["content"]}]
            assert await client.turn("b") == "Two."
            assert gateway.headers["x-headrace-outcome"] == "continuation"
    assert isinstance(gateway, RunningGateway)
    events = recorded_in(tmp_path)
    assert len(calls_in(events)) == 2
    assert assert_exact(events) == 1
