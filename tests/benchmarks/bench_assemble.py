"""Events a second of the assembler, beside a bare aiokafka loop that parses nothing, on one broker in one run.

    python tests/benchmarks/bench_assemble.py [--kafka HOST:PORT] [--trajectories 5000] [--rounds 3]

20 events of about 600 bytes a trajectory, 500 trajectories open at a time in each partition, exactly-once. Rounds are
interleaved; compare rows of one run with each other, not figures of different machines. Without ``--kafka`` a broker is
started for the run; with it, use one that is thrown away.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from headrace.schemas.events import ModelCalled, ToolCalled, ToolReturned, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.log import create_topics, open_consumer, open_producer, partitions_of
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS, PARTITIONS
from headrace.schemas.wire import Message, encode
from headrace.streams.assembler import AssemblerConfig, run_assembler
from headrace.streams.fold_limits import FoldLimits
from headrace.streams.partition import PartitionAssembly
from headrace.streams.raw import LogRecord

OPEN = 500
"""Trajectories open at a time in a partition."""


def history(trajectory_id: str) -> list[Message]:
    """20 events: a start, six model calls, six tool calls with results, an end."""
    from headrace.schemas.envelope import Envelope
    from headrace.schemas.events import VersionSpan
    from headrace.schemas.ids import uuid7
    from headrace.schemas.tokens import prefix_hash

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
                **prefix,
            )
        )
        context = context + fresh + sampled
        facts.append(ToolCalled(call_id=f"c{number}", tool="search", arguments={"query": "x" * 400}))
        facts.append(ToolReturned(call_id=f"c{number}", tool="search", result={"text": "y" * 500}, latency_s=0.1))
    facts.append(TrajectoryEnded(outcome=1.0))
    now = time.time_ns() // 1_000_000
    return [
        encode(
            fact,
            key=trajectory_id,
            envelope=Envelope(uuid7(), fact.TYPE, "/bench", now, trajectory_id, number, "00-" + "a" * 50),
        )
        for number, fact in enumerate(facts)
    ]


async def fill(bootstrap: str, trajectories: int) -> tuple[int, int]:
    """Write the load; returns events and bytes."""
    events = size = 0
    async with open_producer(bootstrap) as producer:
        for partition in range(PARTITIONS):
            names = [f"{time.time_ns()}-{number}" for number in range(trajectories // PARTITIONS)]
            for start in range(0, len(names), OPEN):
                for step in zip(*(history(name) for name in names[start : start + OPEN]), strict=True):
                    for message in step:
                        await producer.send(
                            EVENTS.name,
                            key=message.key,
                            value=message.value,
                            headers=message.headers,
                            partition=partition,
                        )
                        events, size = events + 1, size + len(message.value)
        await producer.flush()
    return events, size


async def read_all(bootstrap: str) -> list[list[LogRecord]]:
    """Every record of ``events``, by partition: the bare loop."""
    async with open_consumer(bootstrap) as consumer:
        partitions = await partitions_of(consumer, EVENTS)
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        found: dict[TopicPartition, list[LogRecord]] = {partition: [] for partition in partitions}
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=200, max_records=1000)).items():
                found[partition] += records
        return list(found.values())


async def assemble_all(bootstrap: str, group: str, watch: "Stopwatch") -> None:
    """The assembler, from the beginning of ``events`` until its commits have reached the end; joining not counted."""
    stop, ready = asyncio.Event(), asyncio.Event()
    # A group without commits looks at the latest trajectories, here those of the round before: one is enough.
    config = AssemblerConfig(bootstrap, group=group, remember=1)
    running = asyncio.create_task(run_assembler(config, stop=stop, ready=ready.set))
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    async with open_consumer(bootstrap) as consumer:
        partitions = await partitions_of(consumer, EVENTS)
        ends = await consumer.end_offsets(partitions)
    try:
        await asyncio.wait({running, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        watch.zero()
        while not running.done():
            commits = await admin.list_consumer_group_offsets(group)
            if all(partition in commits and commits[partition].offset >= ends[partition] for partition in partitions):
                break
            await asyncio.sleep(0.02)
    finally:
        stop.set()
        await running
        await admin.close()


class Stopwatch:
    """Wall and CPU seconds since it was last set to zero."""

    def __init__(self) -> None:
        self.zero()

    def zero(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, events: int) -> tuple[float, float]:
        """Thousands of events a second of wall time and of this process's CPU time."""
        return (
            events / (time.perf_counter() - self._wall) / 1e3,
            events / (time.process_time() - self._cpu) / 1e3,
        )


@asynccontextmanager
async def broker(address: str | None) -> AsyncIterator[str]:
    """The broker at ``address``, or one that is started and thrown away."""
    if address:
        yield address
        return
    from headrace.deploy.children import Child
    from headrace.deploy.kafka import Broker, kafka_jars, prepare_broker, wait_until_answers
    from headrace.deploy.ports import free_port
    from headrace.schemas.log import MAX_REQUEST_BYTES

    with tempfile.TemporaryDirectory() as folder:
        made = Broker(Path(folder), free_port(), free_port(), MAX_REQUEST_BYTES)
        jars = await kafka_jars(Path.home() / ".cache" / "headrace")
        child = Child(await prepare_broker(made, jars), Path(folder) / "kafka.log")
        try:
            await wait_until_answers(made.bootstrap, 90)
            yield made.bootstrap
        finally:
            child.kill()


async def run(options: argparse.Namespace) -> None:
    async with broker(options.kafka) as bootstrap:
        await create_topics(bootstrap)
        events, size = await fill(bootstrap, options.trajectories)
        print(f"{events} events of {size / events:.0f} bytes; thousands a second, medians of {options.rounds}")
        found: dict[str, list[tuple[float, float]]] = {}
        loaded: list[list[LogRecord]] = []
        watch = Stopwatch()

        async def bare() -> None:
            loaded[:] = await read_all(bootstrap)

        async def in_memory() -> None:
            for records in loaded:
                assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
                for record in records:
                    assembly.take(record)

        for number in range(options.rounds):
            group = f"bench-{time.time_ns()}-{number}"
            for name, work in (
                ("bare aiokafka loop, nothing parsed", bare),
                ("fold, decode and encode, without Kafka", in_memory),
                ("assembler, exactly once", lambda group=group: assemble_all(bootstrap, group, watch)),
            ):
                watch.zero()
                await work()
                found.setdefault(name, []).append(watch.rates(events))
        print(f"{'':<40}{'wall':>8}{'per core':>10}")
        for name, rows in found.items():
            wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{name:<40}{wall:>8.1f}{cpu:>10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", help="address of a broker to use; it is left full of events")
    parser.add_argument("--trajectories", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    logging.basicConfig(level="WARNING")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
