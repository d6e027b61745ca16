"""The broker of a benchmark, and the progress of consumer groups on it."""

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError

from headrace.deploy.kafka.broker import Broker, prepare_broker, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.system.children import Child
from headrace.deploy.system.ports import free_ports
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES, open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS, PARTITIONS
from headrace.streams.assembly.recovery import parse_commit_metadata
from tests.conftest import CACHE

HEAP_MB = 1024
"""The broker must not be what is measured."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A temporary broker with all topics."""

    bootstrap: str
    """Its address."""
    broker: psutil.Process
    """For its CPU time."""
    admin: AIOKafkaAdminClient
    """Creates, empties and deletes topics, and reads commits."""
    reader: AIOKafkaConsumer
    """Reads end offsets of topics."""
    folder: Path
    """Folder for files of the measured programs."""

    async def ends(self, topic: str = EVENTS.name) -> dict[TopicPartition, int]:
        """End offsets of the partitions of ``topic`` for a reader of committed records."""
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends: dict[TopicPartition, int] = await self.reader.end_offsets(partitions)
        return ends

    async def done(self, group: str, topic: str = EVENTS.name) -> int:
        """Records of ``topic`` that ``group`` has committed as processed.

        Our assembler commits the oldest event it still needs, and its position in the metadata; the position counts.
        """
        try:
            commits = await self.admin.list_consumer_group_offsets(group)
        except KafkaError:  # No coordinator yet, or one that is busy with a rebalance.
            return 0
        positions = (
            checkpoint.next if (checkpoint := parse_commit_metadata(commit.metadata or "")) else commit.offset
            for partition, commit in commits.items()
            if partition.topic == topic
        )
        return sum(max(position, 0) for position in positions)

    async def create(self, topic: str) -> None:
        """Create an empty topic for a program's output, with as many partitions as ``events``."""
        await self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])

    async def empty(self, topic: str) -> None:
        """Delete the records of ``topic``; its offsets continue."""
        ends = await self.ends(topic)
        await self.admin.delete_records({partition: RecordsToDelete(end) for partition, end in ends.items()})

    async def drop(self, prefix: str) -> None:
        """Delete the topics whose names start with ``prefix``."""
        topics = [topic for topic in await self.admin.list_topics() if topic.startswith(prefix)]
        if topics:
            await self.admin.delete_topics(topics)

    async def committed(self, topic: str) -> int:
        """Number of committed records in ``topic``."""
        ends, count = await self.ends(topic), 0
        async with open_consumer(self.bootstrap) as consumer:
            consumer.assign(list(ends))
            await consumer.seek_to_beginning()
            while any([await consumer.position(partition) < end for partition, end in ends.items()]):
                batches = await consumer.getmany(timeout_ms=200, max_records=5000)
                count += sum(map(len, batches.values()))
        return count


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds of ``processes`` and their children so far, ended ones included, user and system."""
    family = {each for process in processes for each in (process, *process.children(recursive=True))}
    seconds = 0.0
    for each in family:
        # RocksDB's start asks a short-lived child what system it is on.
        with suppress(psutil.NoSuchProcess):
            seconds += sum(each.cpu_times()[:4])
    return seconds


def memory_mb(processes: Iterable[psutil.Process]) -> float:
    """Resident memory of ``processes`` and their children, in MiB."""
    family = {each for process in processes for each in (process, *process.children(recursive=True))}
    return float(sum(each.memory_info().rss for each in family) / 2**20)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """A fresh broker with all topics."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = Broker(folder / "kafka", *free_ports(2), MAX_REQUEST_BYTES, heap_mb=HEAP_MB)
        child = Child(await prepare_broker(made, await kafka_jars(CACHE)), folder / "kafka.log")
        try:
            await wait_until_answers(made.bootstrap, 90)
            await create_topics(made.bootstrap)
            admin = AIOKafkaAdminClient(bootstrap_servers=made.bootstrap)
            await admin.start()
            try:
                async with open_consumer(made.bootstrap) as reader:
                    await partitions_of(reader, EVENTS)
                    yield Cluster(made.bootstrap, psutil.Process(child.pid), admin, reader, folder)
            finally:
                await admin.close()
        finally:
            child.kill()
