"""The whole path on servers of its own: assemble, score and group, the sink, and a ClickHouse, each a process.

async with path(stage("score"), stage("group")) as running:
    ended_ms = (await flow(running.kafka, rate, trajectories))["ended_ms"]
    await running.training.until(set(ended_ms), running.children)
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from clickhouse_connect.driver.client import Client

from headrace.deploy.system.children import Child, Command
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import PARTITIONS, TRAINING
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.benchmarks.bench_sink import clickhouse
from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.contender import Contender, Start, check, prepared, running, worker
from tests.benchmarks.peers import assembler

ROOT = Path(__file__).parents[2]

_GIVE_UP_S = 60.0
_POLL_S = 0.05
_ROWS_POLL_S = 0.1


@dataclass(slots=True)
class Arrivals:
    """When each group arrived, in Unix milliseconds."""

    at_ms: dict[str, float] = field(default_factory=dict)

    async def until(self, groups: set[str], children: Collection[Child]) -> None:
        """Return once all ``groups`` have arrived. Raises ``RuntimeError`` if none did for a minute, or if one of
        ``children`` ended.
        """
        moved_at, count = time.monotonic(), 0
        while missing := groups - self.at_ms.keys():
            if len(self.at_ms) > count:
                moved_at, count = time.monotonic(), len(self.at_ms)
            if time.monotonic() > moved_at + _GIVE_UP_S:
                raise RuntimeError(f"{len(missing)} of {len(groups)} groups did not arrive")
            check(children)
            await asyncio.sleep(_POLL_S)

    async def watch_training(self, bootstrap: str) -> None:
        """Record when training records arrive at a reader of committed records, like the trainer, until cancelled."""
        async with open_consumer(bootstrap) as consumer:
            consumer.assign(await partitions_of(consumer, TRAINING))
            await consumer.seek_to_beginning()
            while True:
                batches = await consumer.getmany(timeout_ms=100)
                now = time.time() * 1000
                for records in batches.values():
                    self.at_ms.update((record.key.decode(), now) for record in records)

    async def watch_rows(self, client: Client) -> None:
        """Record when the rows of training records are first visible in ClickHouse, to 0.1 s, until cancelled."""
        seen = [-1] * PARTITIONS
        while True:
            found = await asyncio.to_thread(
                client.query,
                "SELECT partition, max(offset), groupUniqArray(group_id) FROM training "
                "WHERE offset > {seen:Array(Int64)}[partition + 1] GROUP BY partition",
                parameters={"seen": seen},
            )
            now = time.time() * 1000
            for partition, offset, groups in found.result_rows:
                seen[partition] = offset
                self.at_ms.update(dict.fromkeys(groups, now))
            await asyncio.sleep(_ROWS_POLL_S)


@dataclass(frozen=True, slots=True)
class RunningPath:
    """The processes of a path, and what arrives at its ends."""

    kafka: Cluster
    """The broker."""
    client: Client
    """A client of ClickHouse."""
    by_name: dict[str, Child]
    """headrace's processes."""
    processes: dict[str, list[psutil.Process]]
    """All processes, ``broker`` and ``clickhouse`` included."""
    training: Arrivals
    """Training records at a reader of committed records."""
    rows: Arrivals
    """Their rows in ClickHouse, if they are watched."""

    @property
    def children(self) -> Collection[Child]:
        """headrace's processes."""
        return self.by_name.values()


@asynccontextmanager
async def path(
    *workers: Contender, watch_rows: bool = False, checkout: Path | None = None
) -> AsyncIterator[RunningPath]:
    """A fresh broker and ClickHouse with assemble, ``workers`` and the sink, in their default settings.

    ``watch_rows``: query ClickHouse for new rows ten times a second, which costs it processor time. ``checkout``: the
    processes run the code of that checkout, whose extension module is built, with this Python; broker and ClickHouse
    are this one's, and the tables those that its sink creates.
    """
    async with AsyncExitStack() as servers:
        kafka = await servers.enter_async_context(cluster())
        url, server = servers.enter_context(clickhouse(None))
        client = open_client(url)
        servers.callback(client.close)
        if checkout is None:
            ensure_tables(client)
        with ExitStack() as started:
            children: dict[str, Child] = {}
            for each in (
                Contender("assemble", "assemble", assembler, ours=True),
                *workers,
                Contender("sink", "sink", _sink(url), writes=False),
            ):
                contender = each if checkout is None else of_checkout(checkout, each)
                (children[each.name],) = started.enter_context(running(contender, await prepared(kafka, each)))
            await _has_tables(client, children.values())
            processes = {name: [psutil.Process(child.pid)] for name, child in children.items()}
            processes |= {"clickhouse": server, "broker": [kafka.broker]}
            training, rows = Arrivals(), Arrivals()
            watching = [training.watch_training(kafka.bootstrap), *([rows.watch_rows(client)] if watch_rows else [])]
            async with in_background(*watching):
                yield RunningPath(kafka, client, children, processes, training, rows)


@asynccontextmanager
async def in_background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``coroutines`` until the block ends; an exception in one of them ends the block."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in coroutines]
        yield
        for each in running:
            each.cancel()


async def flow(
    kafka: Cluster, rate: float | None, trajectories: int, *, checkout: Path | None = None
) -> dict[str, Any]:
    """The generator in a separate process, at ``rate`` events per second or as fast as the broker accepts them; that of
    ``checkout``, whose processes may not know the events of this one. ``cpu_s`` of the result: its processor time, if
    no other child process ends meanwhile.
    """
    argv = [sys.executable, "-m", "tests.benchmarks.flow", kafka.bootstrap, "--trajectories", str(trajectories)]
    before_s = _ended_children_s()
    generator = await asyncio.create_subprocess_exec(
        *argv,
        *(["--rate", str(rate)] if rate else []),
        stdout=asyncio.subprocess.PIPE,
        cwd=checkout or ROOT,
        env={**os.environ, **({"PYTHONPATH": _python_path(checkout)} if checkout else {})},
    )
    try:
        written, _ = await generator.communicate()
    finally:
        if generator.returncode is None:
            generator.kill()
    if generator.returncode:
        raise RuntimeError(f"the generator failed with status {generator.returncode}")
    poured: dict[str, Any] = json.loads(written)
    return poured | {"cpu_s": _ended_children_s() - before_s}


def _ended_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _has_tables(client: Client, children: Collection[Child]) -> None:
    """Wait until the sink has created its tables. Raises ``RuntimeError`` if one of ``children`` ends."""
    while not client.query("EXISTS TABLE training").result_rows[0][0]:
        check(children)
        await asyncio.sleep(_ROWS_POLL_S)


def _python_path(checkout: Path) -> str:
    root = checkout.resolve()
    return os.pathsep.join((str(root / "src"), str(root)))


def of_checkout(checkout: Path, contender: Contender) -> Contender:
    """``contender`` as the code of ``checkout`` runs it."""

    def command(start: Start) -> Command:
        made = contender.command(start)
        return replace(made, env={**made.env, "PYTHONPATH": _python_path(checkout)})

    return replace(contender, command=command)


def _sink(url: str) -> Callable[[Start], Command]:
    def command(start: Start) -> Command:
        made = worker("sink", start, {})
        return replace(made, env={**made.env, "HEADRACE_CLICKHOUSE": url})

    return command
