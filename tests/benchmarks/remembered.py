"""Time from kill -9 to a new trajectory, when the restart has to read all the closed trajectories it remembers.

A restart reads the latest written trajectories, here of one partition, to distinguish duplicates from new ones.
The limit, in the same round: reading the same records with librdkafka and discarding them.
"""

import asyncio
import random
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Any

from aiokafka import TopicPartition

from headrace.schemas.envelope import ID, SUBJECT, Envelope
from headrace.schemas.events import ToolCalled, ToolReturned, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS, TRAJECTORIES
from headrace.schemas.wire import Message, encode
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.reading.partition_reader import open_reader
from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.contender import Contender, Start, prepared, running
from tests.benchmarks.peers import CONTENDERS
from tests.benchmarks.recovery import patience, take_all_and_die, until_answered

FULL = FoldLimits().remember
"""Trajectories remembered per partition by default."""

SIZES_KB = (8, 100)
"""Sizes of a trajectory's record: a short search, and a long one."""

TEXTS = 40
"""Different texts, so that a batch of records does not compress to the size of one."""

_PARTITION = 0


async def measure(remembered: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds by size, ``rounds`` of each, in a log with ``remembered`` closed trajectories in one partition."""
    (ours,) = (contender for contender in CONTENDERS if contender.name == "headrace")
    sizes: dict[str, Any] = {}
    for kilobytes in SIZES_KB:
        async with cluster() as kafka:
            await fill(kafka.bootstrap, remembered, kilobytes * 1024)
            start = await prepared(kafka, ours)
            await take_all_and_die(kafka, ours, start)
            seconds, limit, size = [], [], 0.0
            for number in range(rounds):
                seconds.append(await _restart(kafka, ours, start, number))
                took, size = await _read(kafka.bootstrap)
                limit.append(took)
                say(f"{kilobytes} KB: {seconds[-1]:.1f} s; reading {size / 2**20:,.0f} MiB alone {limit[-1]:.1f} s")
            sizes[str(kilobytes)] = {"seconds": seconds, "reading_s": limit, "bytes": size}
    return {"remembered": remembered, "sizes": sizes}


async def fill(bootstrap: str, trajectories: int, size: int, prefix: str = "closed") -> None:
    """Write finished trajectories whose records have about ``size`` bytes, into one partition."""
    chance = random.Random(1)
    templates = [_history(f"{chance.randbytes(size // 2).hex()}") for _ in range(TEXTS)]
    async with open_producer(bootstrap) as producer:
        for number in range(trajectories):
            name = f"{prefix}-{number}".encode()
            for message in templates[number % TEXTS]:
                own = {ID: uuid7().encode(), SUBJECT: name}
                headers = [(header, own.get(header, value)) for header, value in message.headers]
                await producer.send(EVENTS.name, key=name, value=message.value, headers=headers, partition=_PARTITION)
        await producer.flush()


def _history(text: str) -> list[Message]:
    facts: list[Record] = [
        TrajectoryStarted(task_id="t", group_id="g", group_size=8, agent="bench", run="bench"),
        ToolCalled(call_id="c", tool="search", arguments={"query": "q"}),
        ToolReturned(call_id="c", tool="search", result={"text": text}, latency_s=0.1),
        TrajectoryEnded(outcome=1.0),
    ]
    now = time_ns() // 1_000_000
    return [
        encode(fact, key="t", envelope=Envelope(uuid7(), fact.TYPE, "/bench", now, "t", number, None))
        for number, fact in enumerate(facts)
    ]


async def _restart(kafka: Cluster, contender: Contender, start: Start, number: int) -> float:
    """Start it and kill it: seconds from its start until a trajectory sent at that time is written."""
    place = TopicPartition(TRAJECTORIES.name, _PARTITION)
    ends = {place: (await kafka.ends(TRAJECTORIES.name))[place]}
    begun = monotonic()
    with running(contender, start) as children:
        await fill(kafka.bootstrap, 1, 1024, prefix := f"probe-{number}")
        async with patience(children):
            await until_answered(kafka, start, ends, prefix.encode(), children)
        took = monotonic() - begun
        children[0].kill()
    return took


async def _read(bootstrap: str) -> tuple[float, float]:
    """Seconds to read the trajectories and discard them, and their bytes."""
    place, size = TopicPartition(TRAJECTORIES.name, _PARTITION), 0
    begun = monotonic()
    async with open_reader(bootstrap, place.topic, place.partition, 0) as reader:
        while reader.end is None or reader.position < reader.end:
            records = reader.read()
            size += sum(len(record.value or b"") for record in records)
            await asyncio.sleep(0 if records else 0.005)
    return monotonic() - begun, size
