"""Reads the log for provenance: scans of a topic, and records by their place. The I/O layer, without logic.

Records are streamed or read from a bounded number of places; nothing is buffered beyond them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from aiokafka import TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import report_expired, skip_expired
from headrace.schemas.kafka.read_back import FETCH_WAIT_MS, Place, read_places
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, scan
from headrace.schemas.topics import (
    DEAD_LETTERS,
    EVENTS,
    REJECTED,
    REWARDS,
    STEPS,
    TRAINING,
    TRAJECTORIES,
    WEIGHTS,
    Topic,
)
from headrace.trainer.provenance.evidence import Bounds, MissingRecord, absent

_PARTITIONER = DefaultPartitioner()

_TOPICS = (EVENTS, TRAJECTORIES, REWARDS, TRAINING, REJECTED, STEPS, WEIGHTS, DEAD_LETTERS)
"""Topics that provenance reads."""


class LogReader:
    """A consumer that reads at given places. One reader at a time."""

    def __init__(self, consumer: ReportingConsumer, partitions: Mapping[str, Sequence[TopicPartition]]) -> None:
        """Reads ``partitions`` (by topic) through ``consumer``, which has no subscription; see :func:`open_log`."""
        self._consumer = consumer
        self._partitions = partitions

    async def bounds(self, topic: Topic) -> dict[int, Bounds]:
        """Returns the offsets that each partition of ``topic`` holds now."""
        partitions = self._partitions[topic.name]
        begins = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        return {each.partition: Bounds(begins[each], ends[each]) for each in partitions}

    async def read_at(
        self, topic: Topic, places: Mapping[Place, str]
    ) -> tuple[dict[Place, KafkaRecord], list[MissingRecord]]:
        """Returns the committed records at ``places`` (place → expected subject), and those that are missing."""
        partitions = self._partitions[topic.name]
        self._consumer.assign(partitions)
        self._consumer.pause(*partitions)
        self._consumer.on_expired = skip_expired  # they are returned as missing
        found = await read_places(self._consumer, topic, places)
        lost = sorted(places.keys() - found.keys())
        # Read afterwards, because retention continues meanwhile.
        bounds = await self.bounds(topic) if lost else {}
        return found, [absent(topic.name, place, places[place], bounds.get(place[0])) for place in lost]

    async def offsets_since(self, topic: Topic, time_ms: int) -> dict[int, int]:
        """Returns partition → first offset written at ``time_ms`` (Unix) or later; the end offset if there is none."""
        partitions = self._partitions[topic.name]
        found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
        ends = await self._consumer.end_offsets(partitions)
        return {each.partition: place.offset if (place := found.get(each)) else ends[each] for each in partitions}

    def partition_of(self, topic: Topic, key: str) -> int:
        """Returns the partition of this key, by Kafka's default partitioner."""
        numbers = [each.partition for each in self._partitions[topic.name]]
        chosen: int = _PARTITIONER(key.encode(), numbers, numbers)
        return chosen

    def other_partitions(self, topic: Topic, partition: int) -> list[int]:
        """Returns the topic's other partitions."""
        return [each.partition for each in self._partitions[topic.name] if each.partition != partition]

    def scan(
        self, topic: Topic, start: Mapping[int, int] | None = None, *, partitions: Collection[int] | None = None
    ) -> AsyncGenerator[KafkaRecord]:
        """Yield committed records from ``start`` (partition → offset; default: the first) to the current end.

        ``partitions`` limits the scan; default: all. Nothing else may be read until it is done.
        """
        every = self._partitions[topic.name]
        chosen = [each for each in every if partitions is None or each.partition in partitions]
        self._consumer.on_expired = partial(report_expired, "provenance")
        return scan(self._consumer, chosen, start=start)


@asynccontextmanager
async def open_log(bootstrap: str) -> AsyncIterator[LogReader]:
    """Open a reader of the Kafka at ``bootstrap``. Raises ``LookupError`` if a topic does not exist."""
    async with open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS) as consumer:
        # Before the first assignment: afterwards the client requests metadata of assigned topics only.
        yield LogReader(consumer, {topic.name: await partitions_of(consumer, topic) for topic in _TOPICS})
