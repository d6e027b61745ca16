"""Latency from a group's last event to its training record, through assemble, score and group in separate processes."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from headrace.deploy.system.children import Child
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import TRAINING
from tests.benchmarks.cluster import Cluster, cluster, cpu_s
from tests.benchmarks.contender import Contender, check, prepared, running
from tests.benchmarks.flow import SIZE, pour
from tests.benchmarks.load import EVENTS_EACH, OPEN
from tests.benchmarks.peers import assembler
from tests.benchmarks.workers import stage

ROOT = Path(__file__).parents[2]
FIRST = 50 * SIZE
"""Trajectories that are sent first: once their groups have arrived, every process works."""
RAMP = 4 * OPEN
"""Groups of this many trajectories at the start of the flow are not counted."""

_GIVE_UP_S = 60.0


class Arrivals:
    """Arrival times of training records by group, for a reader of committed records like the trainer."""

    def __init__(self, bootstrap: str) -> None:
        self.at_ms: dict[str, float] = {}
        self._bootstrap = bootstrap

    async def watch(self) -> None:
        """Record arrivals until cancelled."""
        async with open_consumer(self._bootstrap) as consumer:
            consumer.assign(await partitions_of(consumer, TRAINING))
            await consumer.seek_to_beginning()
            while True:
                batches = await consumer.getmany(timeout_ms=100)
                now = time.time() * 1000
                for records in batches.values():
                    self.at_ms.update((record.key.decode(), now) for record in records)

    async def until(self, groups: set[str], children: Collection[Child]) -> None:
        """Return once all ``groups`` have arrived, or none did for a minute; raises if one of ``children`` ended."""
        moved_at, count = time.monotonic(), 0
        while not groups <= self.at_ms.keys() and time.monotonic() < moved_at + _GIVE_UP_S:
            if len(self.at_ms) > count:
                moved_at, count = time.monotonic(), len(self.at_ms)
            check(children)
            await asyncio.sleep(0.05)


async def measure(rate: float, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Latencies of all groups at ``rate`` events per second, and each process's share of a core.

    Raises ``RuntimeError`` if a group does not arrive.
    """
    chain = (Contender("assemble", "assemble", assembler, ours=True), stage("score"), stage("group"))
    async with cluster() as kafka:
        with ExitStack() as stack:
            children = {}
            for contender in chain:
                (children[contender.name],) = stack.enter_context(running(contender, await prepared(kafka, contender)))
            processes = {name: [psutil.Process(child.pid)] for name, child in children.items()}
            processes["broker"] = [kafka.broker]
            arrivals = Arrivals(kafka.bootstrap)
            watching = asyncio.create_task(arrivals.watch())
            try:
                first = await pour(kafka.bootstrap, FIRST)
                await arrivals.until(set(first.ended_ms), children.values())
                begin, before = time.monotonic(), {name: cpu_s(family) for name, family in processes.items()}
                flowed = await flow(kafka, rate, round(rate * seconds / EVENTS_EACH / SIZE) * SIZE + RAMP)
                await arrivals.until(set(flowed["ended_ms"]), children.values())
                elapsed = time.monotonic() - begin
                used = {name: (cpu_s(family) - before[name]) / elapsed for name, family in processes.items()}
            finally:
                watching.cancel()
    lost = flowed["ended_ms"].keys() - arrivals.at_ms.keys()
    if lost:
        raise RuntimeError(f"{len(lost)} of {len(flow['ended_ms'])} groups did not arrive")
    counted = list(flowed["ended_ms"].items())[RAMP // SIZE :]
    latencies_s = sorted((arrivals.at_ms[group] - ended) / 1000 for group, ended in counted)
    say(f"{len(latencies_s)} groups at {rate:.0f} events/s: median {latencies_s[len(latencies_s) // 2]:.2f} s")
    return {
        "rate": rate,
        "seconds": seconds,
        "generator_late_ms": flowed["late_ms"],
        "cores": used,
        "latencies_s": [round(latency, 4) for latency in latencies_s],
    }


async def flow(kafka: Cluster, rate: float | None, trajectories: int) -> dict[str, Any]:
    """The generator in a separate process, at ``rate`` events per second or as fast as the broker accepts them."""
    argv = [sys.executable, "-m", "tests.benchmarks.flow", kafka.bootstrap, "--trajectories", str(trajectories)]
    generator = await asyncio.create_subprocess_exec(
        *argv, *(["--rate", str(rate)] if rate else []), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        written, _ = await generator.communicate()
    finally:
        if generator.returncode is None:
            generator.kill()
    if generator.returncode:
        raise RuntimeError(f"the generator failed with status {generator.returncode}")
    poured: dict[str, Any] = json.loads(written)
    return poured
