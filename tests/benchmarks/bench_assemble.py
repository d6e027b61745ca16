"""Events per second of the assembler, compared with bare client loops, on one broker in one run.

    python -m tests.benchmarks.bench_assemble [--kafka HOST:PORT] [--trajectories 10000] [--rounds 3]

20 events of about 600 bytes per trajectory, 500 trajectories open at a time in each partition, exactly-once. Rounds are
interleaved; compare rows of one run with each other, not figures of different machines. For peers, in separate
processes, see :mod:`tests.benchmarks.throughput`. Without ``--kafka`` a broker is started for the run; with it, use a
disposable one.
"""

import argparse
import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.raw import LogRecord
from headrace.streams.reading.partition_reader import open_reader
from tests.benchmarks.load import Stopwatch, broker, fill

parse = msgspec.json.Decoder().decode


async def ends_of(bootstrap: str) -> dict[TopicPartition, int]:
    """End offsets of the partitions of ``events``."""
    async with open_consumer(bootstrap) as consumer:
        ends: dict[TopicPartition, int] = await consumer.end_offsets(await partitions_of(consumer, EVENTS))
        return ends


async def bare_aiokafka(bootstrap: str, use: Callable[[LogRecord], object] | None = None) -> None:
    """Read every record of ``events`` and ``use`` it: the cost of the client alone."""
    async with open_consumer(bootstrap) as consumer:
        partitions = await partitions_of(consumer, EVENTS)
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for records in (await consumer.getmany(timeout_ms=200, max_records=1000)).values():
                if use is not None:
                    for record in records:
                        use(record)


async def bare_reader(bootstrap: str, keep: list[list[LogRecord]]) -> None:
    """The same with the assembler's reader, one partition after the other."""
    keep.clear()
    for partition, end in (await ends_of(bootstrap)).items():
        kept: list[LogRecord] = []
        async with open_reader(bootstrap, partition.topic, partition.partition, 0) as reader:
            while reader.position < end:
                records = reader.read()
                kept += records
                await asyncio.sleep(0 if records else 0.002)
        keep.append(kept)


def in_memory(partitions: list[list[LogRecord]]) -> None:
    """Fold, decode and encode records that were read before."""
    for records in partitions:
        assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
        for _ in assembly.take_all(records):
            if assembly.pending_bytes > 1 << 20:
                assembly.pending, assembly.pending_bytes = [], 0


async def until_committed(bootstrap: str, group: str) -> None:
    """Wait until the group has committed up to the end of ``events``."""
    ends = await ends_of(bootstrap)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        while True:
            commits = await admin.list_consumer_group_offsets(group)
            if all(place in commits and commits[place].offset >= end for place, end in ends.items()):
                return
            await asyncio.sleep(0.1)
    finally:
        await admin.close()


async def assembler(bootstrap: str, group: str, watch: Stopwatch) -> None:
    """The assembler in this process, from the start of ``events`` to its end; joining the group is not counted."""
    stop, ready = asyncio.Event(), asyncio.Event()
    # A group without commits reads the latest trajectories, here those of the previous round: one is enough.
    config = AssemblerConfig(bootstrap, group=group, remember=1, shares_output=True)
    running = asyncio.create_task(run_assembler(config, stop=stop, ready=ready.set))
    try:
        await asyncio.wait({running, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        watch.zero()
        await until_committed(bootstrap, group)
    finally:
        stop.set()
        await running


async def run(options: argparse.Namespace) -> None:
    async with broker(options.kafka) as bootstrap:
        await create_topics(bootstrap)
        events, size = await fill(bootstrap, options.trajectories)
        print(f"{events} events of {size / events:.0f} bytes; thousands a second, medians of {options.rounds}")
        loaded: list[list[LogRecord]] = []
        watch = Stopwatch()

        async def fold() -> None:
            in_memory(loaded)

        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "bare aiokafka loop, nothing parsed": lambda: bare_aiokafka(bootstrap),
            "bare aiokafka loop, JSON parsed": lambda: bare_aiokafka(bootstrap, lambda r: parse(r.value or b"")),
            "bare librdkafka reader, records kept": lambda: bare_reader(bootstrap, loaded),
            "fold, decode and encode, without Kafka": fold,
            "assembler, exactly once": lambda: assembler(bootstrap, f"bench-{time.time_ns()}", watch),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, step in steps.items():
                watch.zero()
                await step()
                found[name].append(watch.rates(events))
        print(f"{'':<40}{'wall':>8}{'per core':>10}")
        for name, rows in found.items():
            wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{name:<40}{wall:>8.1f}{cpu:>10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", help="address of a broker to use; the events stay in it")
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    logging.basicConfig(level="WARNING")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
