"""The load of the assembler's benchmarks: 20 events of about 600 bytes per trajectory, many open at a time.

    events, size = await fill(bootstrap, trajectories=5000)
    events, _ = await fill(bootstrap, trajectories=5264, ended=False)    # 100,016 events, every trajectory stays open

Also the broker, the stopwatch and the bare loop that every benchmark here compares with.
"""

import tempfile
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.deploy.kafka.broker import Broker, prepare_broker, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.system.children import Child
from headrace.deploy.system.ports import free_ports
from headrace.schemas.envelope import ID, SUBJECT, Envelope
from headrace.schemas.events import (
    ModelCalled,
    Sampling,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
    VersionSpan,
)
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES, open_producer
from headrace.schemas.model import Record
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import EVENTS, PARTITIONS
from headrace.schemas.wire import Message, encode
from tests.conftest import CACHE

OPEN = 500
"""Trajectories open at a time in a partition."""

EVENTS_EACH = 20
"""Events of a trajectory: a start, six model calls, six tool calls with results, an end."""


def history(trajectory_id: str) -> list[Message]:
    """The events of one trajectory. Six model calls extend one context: it becomes one segment of 240 tokens."""
    context = array("i")
    facts: list[Record] = [TrajectoryStarted(task_id="t", group_id="g", group_size=8, agent="bench", run="bench")]
    for number in range(6):
        fresh, sampled = array("i", range(24)), array("i", range(16))
        prefix = {"prefix_length": len(context), "prefix_sha256": prefix_hash(context)} if context else {}
        facts.append(
            ModelCalled(
                model="m",
                context_ids=fresh,
                sampled_ids=sampled,
                logprobs=array("f", [-0.5] * 16),
                version_spans=[VersionSpan(version=3, start=0, end=16)],
                sampling=Sampling(temperature=1.0),
                **prefix,
            )
        )
        context = context + fresh + sampled
        facts.append(ToolCalled(call_id=f"c{number}", tool="search", arguments={"query": "x" * 500}))
        facts.append(ToolReturned(call_id=f"c{number}", tool="search", result={"text": "y" * 600}, latency_s=0.1))
    facts.append(TrajectoryEnded(outcome=1.0))
    now = time.time_ns() // 1_000_000
    return [
        encode(
            fact,
            key=trajectory_id,
            envelope=Envelope(uuid7(), fact.TYPE, "/bench", now, trajectory_id, number, f"00-{'a' * 32}-{'b' * 16}-01"),
        )
        for number, fact in enumerate(facts)
    ]


async def fill(
    bootstrap: str, trajectories: int, *, ended: bool = True, partitions: int = PARTITIONS, prefix: str = ""
) -> tuple[int, int]:
    """Write ``trajectories``, ``OPEN`` of them interleaved at a time in each partition; returns events and payload
    bytes. With ``ended=False`` the last event of each is left out. The payloads are encoded once: only ids differ.
    """
    template = history("template")[: EVENTS_EACH if ended else EVENTS_EACH - 1]
    each = trajectories // partitions
    run = prefix or f"{time.time_ns()}"
    async with open_producer(bootstrap) as producer:
        for start in range(0, each, OPEN):
            for message in template:
                for number in range(start, min(each, start + OPEN)):
                    for partition in range(partitions):
                        name = f"{run}-{partition}-{number}".encode()
                        own = {ID: uuid7().encode(), SUBJECT: name}
                        await producer.send(
                            EVENTS.name,
                            key=name,
                            value=message.value,
                            headers=[(header, own.get(header, value)) for header, value in message.headers],
                            partition=partition,
                        )
        await producer.flush()
    count = each * partitions
    return count * len(template), count * sum(len(message.value) for message in template)


class Stopwatch:
    """Wall and CPU seconds since it was last set to zero."""

    def __init__(self) -> None:
        self.zero()

    def zero(self) -> None:
        """Restart from zero."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, events: int) -> tuple[float, float]:
        """Thousands of events per second of wall time and of this process's CPU time, all threads."""
        return (
            events / (time.perf_counter() - self._wall) / 1e3,
            events / (time.process_time() - self._cpu) / 1e3,
        )


@asynccontextmanager
async def broker(address: str | None = None) -> AsyncIterator[str]:
    """The broker at ``address``, or a temporary one."""
    if address:
        yield address
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Broker(Path(folder), *free_ports(2), MAX_REQUEST_BYTES)
        child = Child(await prepare_broker(made, await kafka_jars(CACHE)), Path(folder) / "kafka.log")
        try:
            await wait_until_answers(made.bootstrap, 90)
            yield made.bootstrap
        finally:
            child.kill()
