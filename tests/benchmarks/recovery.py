"""Time from kill -9 with many open events to new trajectories in every partition."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic, time_ns
from typing import Any

from aiokafka import TopicPartition

from headrace.deploy.system.children import Child, end_of
from headrace.schemas.kafka.clients import open_consumer
from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.contender import Contender, Start, check, prepared, running
from tests.benchmarks.load import EVENTS_EACH, fill
from tests.benchmarks.peers import CONTENDERS

MEASURED = ("headrace", "kafka-streams", "kafka-streams-rocksdb", "quix")

_GIVE_UP_S = 120.0
_QUIET_S = 1.0
"""Long enough for the last transaction to end, so that the kill hits an idle process."""


async def measure(
    open_events: int, rounds: int, say: Callable[[str], None], names: Sequence[str] = MEASURED
) -> dict[str, Any]:
    """Seconds by contender, ``rounds`` of each; all read one log with ``open_events`` of unfinished trajectories."""
    contenders = [contender for contender in CONTENDERS if contender.name in names]
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    async with cluster() as kafka:
        trajectories = round(open_events / (EVENTS_EACH - 1))
        waiting, _ = await fill(kafka.bootstrap, trajectories, ended=False)
        for _ in range(rounds):
            for contender in contenders:
                took = await _once(kafka, contender)
                seconds[contender.name].append(took)
                say(f"{contender.title}: {took:.1f} s")
                await kafka.drop(contender.name)
    return {
        "open_events": waiting,
        "open_trajectories": trajectories,
        "titles": {contender.name: contender.title for contender in contenders},
        "seconds": seconds,
    }


async def _once(kafka: Cluster, contender: Contender) -> float:
    start = await prepared(kafka, contender)
    killed = await take_all_and_die(kafka, contender, start)
    ends = await kafka.ends(start.output)
    with running(contender, start) as children:
        prefix = f"probe-{time_ns()}"
        await fill(kafka.bootstrap, len(ends), prefix=prefix)
        async with patience(children):
            await until_answered(kafka, start, ends, prefix.encode(), children)
        return monotonic() - killed


async def take_all_and_die(kafka: Cluster, contender: Contender, start: Start) -> float:
    """Let it process the whole log, then kill it while it is idle; returns the time (monotonic, seconds)."""
    total = sum((await kafka.ends()).values())
    with running(contender, start) as children:
        async with patience(children):
            while await kafka.done(start.group) < total:
                check(children)
                await asyncio.sleep(0.05)
        await asyncio.sleep(_QUIET_S)
        killed = monotonic()
        for child in children:
            child.kill()
    return killed


@asynccontextmanager
async def patience(children: list[Child]) -> AsyncIterator[None]:
    """Time limit for the body; raises ``RuntimeError`` with the end of the first log if it takes too long."""
    try:
        async with asyncio.timeout(_GIVE_UP_S):
            yield
    except TimeoutError as error:
        raise RuntimeError(f"nothing came for {_GIVE_UP_S:g} s:\n{end_of(children[0].log, 40)}") from error


async def until_answered(
    kafka: Cluster, start: Start, ends: dict[TopicPartition, int], prefix: bytes, children: list[Child]
) -> None:
    """Return once the trajectories sent after the kill are written: one per partition of ``events``."""
    answered: set[bytes] = set()
    async with open_consumer(kafka.bootstrap) as reader:
        reader.assign(list(ends))
        for partition, end in ends.items():
            reader.seek(partition, end)
        while len(answered) < len(ends):
            check(children)
            for records in (await reader.getmany(timeout_ms=20)).values():
                answered |= {record.key for record in records if record.key.startswith(prefix)}
