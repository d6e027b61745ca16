"""Processor time of score and group in one worker, at a rate, of one checkout and another in turns on one broker.

    python -m tests.benchmarks.bench_scoring CHECKOUT… --rate 600 --trajectories 5000 --rounds 2

Trajectories of 20 events (11 kB) are assembled once and written again under other ids. Also printed: the transactions
of both processors, because what one costs hardly depends on what it holds.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
from aiokafka import AIOKafkaProducer, TopicPartition

from headrace.schemas.envelope import Headers
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of, scan
from headrace.schemas.topics import PARTITIONS, TRAJECTORIES
from headrace.streams.faust_shell.worker import state_topic
from headrace.streams.runtime.state_keys import COMMITTED
from tests.benchmarks.cluster import Cluster, cluster, cpu_s
from tests.benchmarks.contender import Contender, check, prepared, running
from tests.benchmarks.flow import SIZE
from tests.benchmarks.load import EVENTS_EACH
from tests.benchmarks.path import ROOT, Arrivals, flow, in_background, of_checkout
from tests.benchmarks.peers import assembler
from tests.benchmarks.workers import stage

FIRST = 800
"""Trajectories before anything is counted: by then the worker has imported everything and works."""
_FIRST_RATE = 200.0
_TICK_S = 0.02


class Recorded(NamedTuple):
    """A trajectory as the assembler wrote it."""

    partition: int
    key: bytes
    value: bytes
    headers: Headers

    @property
    def number(self) -> int:
        """Its number within the run."""
        return int(self.key.rpartition(b"-")[2])


async def record(kafka: Cluster, count: int) -> list[Recorded]:
    """``count`` trajectories of one run, by number."""
    contender = Contender("assemble", "assemble", assembler, ours=True)
    found: list[Recorded] = []
    with running(contender, await prepared(kafka, contender)) as children:
        await flow(kafka, None, count)
        async with open_consumer(kafka.bootstrap) as reader:
            reader.assign(await partitions_of(reader, TRAJECTORIES))
            await reader.seek_to_beginning()
            while len(found) < count:
                check(children)
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found += [Recorded(each.partition, each.key, each.value, list(each.headers)) for each in records]
    return sorted(found, key=lambda each: each.number)


async def write(producer: AIOKafkaProducer, recorded: Sequence[Recorded], rate: float) -> set[str]:
    """Write ``recorded`` under other ids, ``rate`` of them a second; returns their groups."""
    old, new = recorded[0].key.rpartition(b"-")[0], b"%d" % time.time_ns()
    begin = time.monotonic()
    for count, each in enumerate(recorded):
        wait_s = begin + count / rate - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(max(_TICK_S, wait_s))
        await producer.send(
            TRAJECTORIES.name,
            key=each.key.replace(old, new),
            value=each.value.replace(old, new),
            headers=[(name, value.replace(old, new)) for name, value in each.headers],
            partition=each.partition,
        )
    await producer.flush()
    return {f"{new.decode()}-{each.number // SIZE}" for each in recorded}


async def transactions(kafka: Cluster) -> int:
    """Transactions of score and group so far: each writes one record with its offsets."""
    count = 0
    async with open_consumer(kafka.bootstrap) as reader:
        for name in map(state_topic, ("score", "group")):
            places = [TopicPartition(name, number) for number in range(PARTITIONS)]
            async for each in scan(reader, places):
                count += each.key == COMMITTED
    return count


async def measure(checkouts: Sequence[Path], trajectories: int, rounds: int, rate: float) -> None:
    """Print a line for each checkout in each round."""
    async with cluster() as kafka, open_producer(kafka.bootstrap) as producer:
        recorded, arrivals = await record(kafka, trajectories // SIZE * SIZE), Arrivals()
        async with in_background(arrivals.watch_training(kafka.bootstrap)):
            for checkout in [*checkouts] * rounds:
                contender = of_checkout(checkout, replace(stage("score+group"), ours=True))
                # Stopped gracefully, but its input is not emptied.
                start = await prepared(kafka, replace(contender, ours=False))
                with running(contender, start) as children:
                    await arrivals.until(await write(producer, recorded[:FIRST], _FIRST_RATE), children)
                    worker, before = [psutil.Process(child.pid) for child in children], await transactions(kafka)
                    begin = cpu_s(worker)
                    await arrivals.until(await write(producer, recorded, rate), children)
                    each_us = (cpu_s(worker) - begin) / len(recorded) * 1e6
                    made = await transactions(kafka) - before
                    print(
                        f"{checkout}: {each_us:.0f} µs per trajectory, {each_us / EVENTS_EACH:.1f} per event; "
                        f"{made} transactions with {2 * len(recorded) / made:.0f} records each",
                        flush=True,
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="CHECKOUT")
    parser.add_argument("--trajectories", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=float, default=600.0, help="trajectories per second")
    options = parser.parse_args()
    asyncio.run(measure(options.checkouts, options.trajectories, options.rounds, options.rate))
