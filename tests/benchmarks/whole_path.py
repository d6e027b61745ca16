"""Processor time per event on the whole path: event → trajectory → reward → training record, and into ClickHouse.

The processes are those of ``headrace up --without vllm,trainer,follower``, with their default settings. They work on a
backlog, in large batches: the figure is the cost per event and not the cost of waiting.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from clickhouse_connect.driver.client import Client

from headrace.deploy.system.children import Child, Command
from headrace.schemas.events import ClockTicked
from headrace.streams.clickhouse.database import ensure_tables, open_client
from tests.benchmarks.bench_sink import clickhouse
from tests.benchmarks.cluster import Cluster, cluster, cpu_s, memory_mb
from tests.benchmarks.contender import Contender, Start, check, prepared, running, worker
from tests.benchmarks.flow import SIZE
from tests.benchmarks.latency import Arrivals, flow
from tests.benchmarks.load import EVENTS_EACH, OPEN
from tests.benchmarks.peers import assembler
from tests.benchmarks.workers import stage

ROOT = Path(__file__).parents[2]
TITLES = {
    "assemble": "assemble",
    "score+group": "score and group",
    "sink": "sink",
    "clickhouse": "ClickHouse, with its merges",
    "broker": "Kafka's broker",
}
FIRST = 4 * OPEN
"""Trajectories that pass before anything is counted: by then every process has imported everything and works."""

_STUCK_S = 120.0
_POLL_S = 0.2


async def measure(trajectories: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """``rounds`` samples: microseconds of processor time per event, by process.

    Raises ``RuntimeError`` if a process ends, or nothing moves for two minutes.
    """
    samples = []
    for _ in range(rounds):
        one = await _sample(trajectories)
        samples.append(one)
        say(", ".join(f"{name} {us:.1f}" for name, us in one["us_per_event"].items()) + " µs per event")
    return {"trajectories": trajectories, "titles": TITLES, "samples": samples}


def _sink(url: str) -> Callable[[Start], Command]:
    def command(start: Start) -> Command:
        made = worker("sink", start, {})
        return replace(made, env={**made.env, "HEADRACE_CLICKHOUSE": url})

    return command


async def _sample(trajectories: int) -> dict[str, Any]:
    async with cluster() as kafka:
        with clickhouse(None) as (url, server), ExitStack() as stack:
            chain = (
                Contender("assemble", "assemble", assembler, ours=True),
                stage("score+group"),
                Contender("sink", "sink", _sink(url), writes=False),
            )
            children: dict[str, Child] = {}
            for each in chain:
                (children[each.name],) = stack.enter_context(running(each, await prepared(kafka, each)))
            processes = {name: [psutil.Process(child.pid)] for name, child in children.items()}
            processes |= {"clickhouse": server, "broker": [kafka.broker]}
            client = open_client(url)
            stack.callback(client.close)
            ensure_tables(client)
            arrivals = Arrivals(kafka.bootstrap)
            watching = asyncio.create_task(arrivals.watch())
            try:
                await _through(kafka, FIRST, client, arrivals, children)
                before, begun = {name: cpu_s(family) for name, family in processes.items()}, time.monotonic()
                await _through(kafka, trajectories, client, arrivals, children)
                wall_s = time.monotonic() - begun
                await _merged(server)
            finally:
                watching.cancel()
            events = trajectories * EVENTS_EACH
            return {
                "us_per_event": {
                    name: (cpu_s(family) - before[name]) / events * 1e6 for name, family in processes.items()
                },
                "memory_mb": {name: memory_mb(family) for name, family in processes.items()},
                "wall_s": wall_s,
            }


async def _through(
    kafka: Cluster, trajectories: int, client: Client, arrivals: Arrivals, children: Mapping[str, Child]
) -> None:
    """Write ``trajectories``, and wait until they are training records and rows."""
    # Ticks are rows, too, and transaction markers have offsets: only agents' events are counted.
    count = f"SELECT count() FROM events WHERE type != '{ClockTicked.TYPE}'"
    before = int(client.command(count))
    poured = await flow(kafka, None, trajectories // SIZE * SIZE)
    await arrivals.until(set(poured["ended_ms"]), children.values())
    if missing := poured["ended_ms"].keys() - arrivals.at_ms.keys():
        raise RuntimeError(f"{len(missing)} of {len(poured['ended_ms'])} groups did not arrive")
    moved_at, seen, written = time.monotonic(), -1, before + poured["events"]
    while (rows := int(client.command(count))) < written:
        check(children.values())
        if rows > seen:
            moved_at, seen = time.monotonic(), rows
        elif time.monotonic() > moved_at + _STUCK_S:
            raise RuntimeError(f"ClickHouse has {rows} of {written} events, and no more arrive")
        await asyncio.sleep(_POLL_S)


async def _merged(server: list[psutil.Process]) -> None:
    """Wait until ClickHouse's merges in the background have ended: below a twentieth of a core."""
    while True:
        before = cpu_s(server)
        await asyncio.sleep(2.0)
        if cpu_s(server) - before < 0.1:
            return


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if sys.argv[1:] else 20_000, 1, print))
