"""A whole gateway in the test's process, over HTTP: its engines are scripted, and its events wait in the spool unless
the test has a Kafka."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp

from headrace.agents.gateway import gateway as gateway_process
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.gateway import run_gateway
from headrace.agents.gateway.server import GatewayServer
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, SpooledRecord, cluster_fingerprint
from headrace.deploy.system.ports import free_port
from headrace.schemas.arrays import IntArray
from headrace.schemas.events import ModelCalled
from headrace.schemas.model import Record
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.wire import decode
from tests.agents.sdk_helpers import NOWHERE


@dataclass(frozen=True)
class Recorded:
    """An event as it was recorded."""

    trajectory_id: str
    seq: int | None
    fact: Record


@dataclass
class RunningGateway:
    """A gateway that serves."""

    config: GatewayConfig
    http: aiohttp.ClientSession
    stop: asyncio.Event
    server: GatewayServer
    """Its parts, of which tests look at the state."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.config.port}"

    async def post(
        self, path: str, body: Any, *, key: str = "k", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and decoded answer."""
        status, data = await self.send("POST", path, body, key=key, headers=headers)
        return status, json.loads(data) if self.headers["Content-Type"] == "application/json" else data.decode()

    async def get(self, path: str, *, key: str = "k", headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, data = await self.send("GET", path, key=key, headers=headers)
        return status, json.loads(data)

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str = "k", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and bytes of an answer; its headers are in ``headers``."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
        async with self.http.request(method, self.url + path, data=data, headers=sent) as response:
            self.headers = response.headers
            return response.status, await response.read()

    @property
    def calls_in_flight(self) -> int:
        """Calls that the process, and its sessions, hold as unanswered."""
        sessions = self.server._capture._sessions
        return max(self.server._calls.in_flight, sum(len(session.in_flight) for session in sessions))

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self.server._capture._sessions)

    async def stream(self, path: str, body: dict[str, Any], **how: Any) -> list[Any]:
        """The data of the events of a stream."""
        status, text = await self.post(path, {**body, "stream": True}, **how)
        assert status == 200, text
        return data_of(text)

    async def chat(self, messages: Sequence[Any], path: str = "/v1", **fields: Any) -> dict[str, Any]:
        """The message of a chat completion."""
        status, answer = await self.post(
            f"{path}/chat/completions", {"model": "policy", "messages": list(messages), **fields}
        )
        assert status == 200, answer
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message


def data_of(text: str) -> list[Any]:
    """The data of a stream's events; ``[DONE]`` as text."""
    found = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


@asynccontextmanager
async def running_gateway(folder: Path, engines: Sequence[str], **settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway whose events stay in its spool, unless ``bootstrap`` names a Kafka."""
    values = {"bootstrap": NOWHERE, "port": free_port(), "folder": folder, "flush_s": 0.0} | settings
    config = GatewayConfig(engines=tuple(engines), **values)
    stop, is_ready, servers = asyncio.Event(), asyncio.Event(), list[GatewayServer]()

    def server(*parts: Any, **options: Any) -> GatewayServer:
        servers.append(GatewayServer(*parts, **options))
        return servers[0]

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
        with patch.object(gateway_process, "GatewayServer", server):
            tasks.create_task(run_gateway(config, stop=stop, ready=is_ready.set))
            await asyncio.wait_for(is_ready.wait(), 60)
        try:
            yield RunningGateway(config, http, stop, servers[0])
        finally:
            stop.set()


def recorded_in(folder: Path, *cluster: str) -> list[Recorded]:
    """What a gateway that has stopped left in its spool. ``cluster``: settings that the spool is for; for a
    gateway an address of Kafka, by default one where there is none."""
    return [recorded(each) for each in spooled_in(folder, *cluster)]


def spooled_in(folder: Path, *cluster: str) -> list[SpooledRecord]:
    """The same as records."""

    def unexpected(path: str, loss: Loss) -> None:
        raise AssertionError(f"{path}: {loss}")

    spool = Spool(folder / "spool", 1 << 30, cluster_fingerprint(*(cluster or (NOWHERE,))), unexpected)
    found: list[SpooledRecord] = []
    while spool.adopt():
        while taken := spool.take_adopted(1000, 1 << 30):
            found += [each.record for each in taken]
            for each in taken:
                spool.done(each.segment)
    spool.close()
    return found


def calls_in(events: Sequence[Recorded]) -> list[ModelCalled]:
    """The model calls among ``events``."""
    return [each.fact for each in events if isinstance(each.fact, ModelCalled)]


def recorded(record: SpooledRecord) -> Recorded:
    envelope, payload = decode(record.headers, record.value)
    assert envelope.subject is not None
    return Recorded(envelope.subject, envelope.sequence, payload)


@dataclass(frozen=True)
class ExactCall:
    """A model's call with the whole prompt that its event refers to."""

    trajectory_id: str
    fact: ModelCalled
    prompt_ids: IntArray
    starts_segment: bool
    """Whether it continues no earlier call, or one that another call continues already."""


def exact_calls(events: Sequence[Recorded]) -> list[ExactCall]:
    """All calls, by trajectory. Asserts that numbers have no gaps, and that every prefix is what an earlier call of the
    trajectory ended with."""
    found = []
    for trajectory in {event.trajectory_id: None for event in events}:
        own = sorted((each for each in events if each.trajectory_id == trajectory and each.seq is not None), key=_seq)
        assert [each.seq for each in own] == list(range(len(own)))
        ends: dict[tuple[int, str], IntArray] = {}
        continued: set[tuple[int, str]] = set()
        for call in (each.fact for each in own if isinstance(each.fact, ModelCalled)):
            assert call.context_ids is not None
            assert call.sampled_ids is not None
            before, starts = array("i"), True
            if call.prefix_length:
                assert call.prefix_sha256 is not None
                place = (call.prefix_length, call.prefix_sha256)
                before, starts = ends[place], place in continued
                continued.add(place)
            prompt = before + call.context_ids
            tokens = prompt + call.sampled_ids
            ends[len(tokens), prefix_hash(tokens)] = tokens
            found.append(ExactCall(trajectory, call, prompt, starts))
    return found


def assert_exact(events: Sequence[Recorded]) -> int:
    """Asserts what :func:`exact_calls` does, and returns the number of segments."""
    return sum(call.starts_segment for call in exact_calls(events))


def _seq(event: Recorded) -> int:
    assert event.seq is not None
    return event.seq
