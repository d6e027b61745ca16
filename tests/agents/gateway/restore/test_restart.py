"""A gateway's process is killed in the middle of conversations: the next one continues them, with exact tokens and
numbers."""

import asyncio
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka.errors import KafkaError

from headrace.agents.gateway.nodes import NodeStore
from headrace.agents.gateway.restore import start
from headrace.agents.gateway.restore.fold import RestoreFold
from headrace.agents.gateway.restore.start import Places, restore
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.spool_frames import cluster_fingerprint
from headrace.deploy.system.ports import free_port
from headrace.schemas.events import ModelCalled
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode, envelope_of
from headrace.streams.assembly.segments import SegmentFold
from tests.agents.gateway.harness import ChatClient, Gateway
from tests.agents.gateway.restore.rebirth import SEALER, SOURCE, records_of
from tests.agents.gateway.running import Recorded, assert_exact
from tests.agents.gateway.scripted_engine import Reply, ScriptedEngine, ToyCodec, until
from tests.agents.sdk_helpers import NOWHERE
from tests.conftest import RunningKafka

PROCESS = """
import asyncio, json, sys
from pathlib import Path
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.gateway import run_gateway

async def main(settings):
    config = GatewayConfig(**settings | {"folder": Path(settings["folder"]), "engines": tuple(settings["engines"])})
    await run_gateway(config, stop=asyncio.Event(), ready=lambda: print("ready", flush=True))

asyncio.run(main(json.loads(sys.argv[1])))
"""

CODEC = ToyCodec()
END = tuple(CODEC.encode("<|im_end|>"))


@asynccontextmanager
async def process(folder: Path, engine: ScriptedEngine, bootstrap: str, **settings: Any) -> AsyncIterator[str]:
    """A gateway's process, which is killed at the end; its address."""
    values = {"folder": str(folder), "engines": [engine.url], "bootstrap": bootstrap, "port": free_port()} | settings
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, json.dumps(values),
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 60) == b"ready\n"
        yield f"http://127.0.0.1:{values['port']}"
    finally:
        child.kill()
        await child.wait()


class Conversation:
    """A client of one session that resends its whole transcript."""

    def __init__(self, session: str | None) -> None:
        self.session = session
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"You are the agent of {session}."},
            {"role": "user", "content": "Begin."},
        ]
        self.outcomes: list[str] = []

    async def turn(self, http: aiohttp.ClientSession, url: str) -> None:
        place = f"/s/{self.session}" if self.session else ""
        body = {"model": "policy", "messages": self.messages}
        async with http.post(f"{url}{place}/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            self.outcomes.append(response.headers["x-headrace-outcome"])
            self.trajectory = response.headers["x-headrace-trajectory"]
        self.messages += [answer["choices"][0]["message"], {"role": "user", "content": f"More {len(self.messages)}."}]


def engine_of(**fields: Any) -> ScriptedEngine:
    return ScriptedEngine([Reply("a few words to say", ends_with=END, **fields)], codec=CODEC)


async def logged(bootstrap: str, trajectories: set[str]) -> list[Recorded]:
    """Events of ``trajectories`` on the log, without repeated ones; those of each trajectory are in order."""
    found: list[Recorded] = []
    seen: set[tuple[str, int | None]] = set()
    async for record in read_to_end(bootstrap, EVENTS):
        envelope = envelope_of(record.headers)
        if envelope.subject in trajectories and (envelope.subject, envelope.sequence) not in seen:
            seen.add((envelope.subject, envelope.sequence))
            found.append(Recorded(envelope.subject, envelope.sequence, decode(record.headers, record.value)[1]))
    numbers = defaultdict(list)
    for event in found:
        numbers[event.trajectory_id].append(event.seq)
    assert all(each == list(range(len(each))) for each in numbers.values())
    return found


async def all_logged(bootstrap: str, clients: Sequence[Conversation], calls: int) -> list[Recorded]:
    """What is on the log once it has ``calls`` calls of each client."""
    trajectories = {client.trajectory for client in clients}
    async with asyncio.timeout(60):
        while True:
            with suppress(KafkaError):  # it has just come back
                events = await logged(bootstrap, trajectories)
                if sum(isinstance(event.fact, ModelCalled) for event in events) == calls * len(clients):
                    return events
            await asyncio.sleep(0.3)


def assert_one_segment_each(events: Sequence[Recorded], trajectories: int) -> None:
    assert assert_exact(events) == trajectories
    folds: dict[str, SegmentFold] = defaultdict(SegmentFold)
    for event in events:
        if isinstance(event.fact, ModelCalled):
            folds[event.trajectory_id].add(event.fact)
    assert [len(fold.segments()) for fold in folds.values()] == [1] * trajectories
    assert not any(fold.defects for fold in folds.values())


@pytest.mark.kafka
async def test_conversations_continue_after_a_kill(kafka: str, tmp_path: Path) -> None:
    clients = [Conversation("s1"), Conversation("s2"), Conversation(None)]
    async with engine_of() as engine, aiohttp.ClientSession() as http:
        async with process(tmp_path, engine, kafka) as url:
            for _ in range(2):
                await asyncio.gather(*(client.turn(http, url) for client in clients))
            engine.replies = [Reply("never to be heard of", ends_with=END, chunk_delay_s=30)]
            began = len(engine.requests)
            cut_off = asyncio.create_task(clients[0].turn(http, url))
            await until(lambda: len(engine.requests) > began)
        with pytest.raises(aiohttp.ClientError):
            await cut_off
        engine.replies = [Reply("and some more", ends_with=END)]
        for turns in (2, 1):
            async with process(tmp_path, engine, kafka) as url:
                for _ in range(turns):
                    await asyncio.gather(*(client.turn(http, url) for client in clients))
                events = await all_logged(kafka, clients, len(clients[0].outcomes))
    for client in clients:
        assert client.outcomes == ["new_trajectory", *["continuation"] * 4]
    assert_one_segment_each(events, 3)


@pytest.mark.kafka
async def test_conversations_continue_after_kills_while_kafka_is_away(
    running_kafka: RunningKafka, kafka: str, tmp_path: Path
) -> None:
    clients = [Conversation("k1"), Conversation("k2")]
    async with engine_of() as engine, aiohttp.ClientSession() as http:
        async with process(tmp_path, engine, kafka) as url:
            await asyncio.gather(*(client.turn(http, url) for client in clients))
            await all_logged(kafka, clients, 1)
            running_kafka.freeze()
            late = Conversation("k3")
            for client in (*clients, late):
                await client.turn(http, url)
        try:
            # Only a trajectory that is on disk from its beginning continues; the others are known by Kafka alone.
            async with process(tmp_path, engine, kafka) as url:
                await late.turn(http, url)
            async with process(tmp_path, engine, kafka) as url:
                await late.turn(http, url)
                running_kafka.freeze(False)
                events = await all_logged(kafka, [late], 3)
        finally:
            running_kafka.freeze(False)
        assert late.outcomes == ["new_trajectory", *["continuation"] * 2]
        assert_one_segment_each(events, 1)
        async with process(tmp_path, engine, kafka) as url:
            for client in clients:
                await client.turn(http, url)
                assert client.outcomes == ["new_trajectory", "continuation", "continuation"]
            assert_one_segment_each(await all_logged(kafka, clients, 3), 2)


@pytest.mark.kafka
async def test_another_gateway_resumes_conversations_with_exact_tokens(kafka: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir(mode=0o700)
    clients = [Conversation("r1"), Conversation(None)]
    async with engine_of() as engine, aiohttp.ClientSession() as http:
        async with process(one, engine, kafka) as url:
            for _ in range(2):
                for client in clients:
                    await client.turn(http, url)
            await all_logged(kafka, clients, 2)
        before = {client.trajectory for client in clients}
        shutil.copy(one / "secret", two / "secret")
        prompts = [each["token_ids"] for each in engine.requests[-2:]]
        async with process(two, engine, kafka) as url:
            for _ in range(2):
                for client in clients:
                    await client.turn(http, url)
            events = await all_logged(kafka, clients, 2)
        resumed = [each["token_ids"] for each in engine.requests[-4:-2]]
    sampled = [*CODEC.encode("a few words to say"), *END]
    for known, prompt in zip(prompts, resumed, strict=True):
        assert prompt[: len(known) + len(sampled)] == [*known, *sampled]
    assert [client.outcomes[2:] for client in clients] == [["resumed", "continuation"]] * 2
    assert not before & {client.trajectory for client in clients}
    assert_one_segment_each(events, 2)


def places(bootstrap: str, folder: Path) -> Places:
    return Places(folder / "spool", cluster_fingerprint(bootstrap), bootstrap)


def new_fold() -> RestoreFold:
    return RestoreFold(SEALER, source=SOURCE, max_bytes=10**9)


def long_conversation() -> Gateway:
    """Six events, with ids that no other test has."""
    gateway = Gateway(ids=uuid7())
    gateway.core._new_id = gateway.core._trajectories._new_id = uuid7
    client = ChatClient(gateway, url="s1").say("Begin.")
    client.turn("one", "1")
    client.turn("two", "2")
    return gateway


@pytest.mark.kafka
async def test_what_began_before_the_time_that_is_read_is_found_further_back(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "SLACK_MS", 0)
    gateway = long_conversation()
    records = records_of(gateway.log)
    async with open_producer(kafka) as producer:
        for record in records[:3]:
            await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=record.headers)
        await asyncio.sleep(2.5)
        for record in records[3:]:
            await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=record.headers)
    fold, nodes, sessions = new_fold(), NodeStore(10**9), SessionStore(10)
    found = await restore(fold, places(kafka, tmp_path), nodes, sessions, idle_s=0.5, within_s=30)
    assert (found.trajectories, found.nodes, found.left_out) == (1, 2, 0)


@pytest.mark.kafka
async def test_an_open_transaction_of_another_program_hides_nothing(kafka: str, tmp_path: Path) -> None:
    gateway = long_conversation()
    async with open_producer(kafka, transactional_id=uuid7()) as other, open_producer(kafka) as producer:
        await other.begin_transaction()
        for partition in range(EVENTS.partitions):
            await other.send_and_wait(EVENTS.name, b"{}", partition=partition)
        for record in records_of(gateway.log):
            await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=record.headers)
        fold, nodes, sessions = new_fold(), NodeStore(10**9), SessionStore(10)
        found = await restore(fold, places(kafka, tmp_path), nodes, sessions, idle_s=60, within_s=30)
        await other.abort_transaction()
    session = sessions.get("acme", "s1")
    assert found.trajectories >= 1
    assert session is not None
    assert session.main is not None
    assert session.main.seq == len(gateway.log)


async def test_without_kafka_a_gateway_starts_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = await restore(
        new_fold(), places(NOWHERE, tmp_path), NodeStore(10**9), SessionStore(10), idle_s=60, within_s=30
    )
    assert (found.nodes, found.sessions) == (0, 0)
    assert "could not all be read" in caplog.text
