"""Reads the log for provenance: scans of a topic, and records by their place. The I/O layer, without logic.

Records are streamed or read from a bounded number of places; nothing is buffered beyond them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TypeAlias

from aiokafka import TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from headrace.schemas.archive.archive import Archive, open_archive
from headrace.schemas.archive.segment import ArchivedRecord
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import report_expired, skip_expired
from headrace.schemas.kafka.read_back import FETCH_WAIT_MS, Place, read_places
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, scan
from headrace.schemas.topics import (
    DEAD_LETTERS,
    EVENTS,
    FEEDBACK,
    REJECTED,
    REWARDS,
    STEPS,
    TRAINING,
    TRAJECTORIES,
    WEIGHTS,
    Topic,
)
from headrace.trainer.provenance.evidence import Bounds, MissingRecord, absent

LoggedRecord: TypeAlias = "KafkaRecord | ArchivedRecord"
"""A record of the log, or of its archive."""

_PARTITIONER = DefaultPartitioner()

_TOPICS = (EVENTS, FEEDBACK, TRAJECTORIES, REWARDS, TRAINING, REJECTED, STEPS, WEIGHTS, DEAD_LETTERS)
"""Topics that provenance reads."""


class LogReader:
    """A consumer that reads at given places. One reader at a time."""

    def __init__(
        self,
        consumer: ReportingConsumer,
        partitions: Mapping[str, Sequence[TopicPartition]],
        archive: Archive | None = None,
    ) -> None:
        """Reads ``partitions`` (by topic) through ``consumer``, which has no subscription; see :func:`open_log`.
        ``archive`` has what the log no longer has.
        """
        self._consumer = consumer
        self._archive = archive
        self._partitions = partitions

    async def bounds(self, topic: Topic) -> dict[int, Bounds]:
        """Returns the offsets that each partition of ``topic`` holds now."""
        partitions = self._partitions[topic.name]
        begins = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        return {each.partition: Bounds(begins[each], ends[each]) for each in partitions}

    async def read_at(
        self, topic: Topic, places: Mapping[Place, str]
    ) -> tuple[dict[Place, LoggedRecord], list[MissingRecord]]:
        """Returns the committed records at ``places`` (place → expected subject), and those that are missing."""
        partitions = self._partitions[topic.name]
        self._consumer.assign(partitions)
        self._consumer.pause(*partitions)
        self._consumer.on_expired = skip_expired  # they are returned as missing
        found: dict[Place, LoggedRecord] = {**await read_places(self._consumer, topic, places)}
        if self._archive is not None and (expired := places.keys() - found.keys()):
            found |= await self._archive.at(topic.name, expired)
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

    async def scan(
        self, topic: Topic, start: Mapping[int, int] | None = None, *, partitions: Collection[int] | None = None
    ) -> AsyncGenerator[LoggedRecord]:
        """Yield committed records from ``start`` (partition → offset; default: the first) to the current end, of each
        partition those of the archive first.

        ``partitions`` limits the scan; default: all. Nothing else may be read until it is done.
        """
        every = self._partitions[topic.name]
        chosen = [each for each in every if partitions is None or each.partition in partitions]
        self._consumer.on_expired = partial(report_expired, "provenance")
        if self._archive is not None:
            begins = await self._consumer.beginning_offsets(chosen)
            wanted = {place: (start or {}).get(place.partition, 0) for place in chosen}
            start = {place.partition: max(wanted[place], begin) for place, begin in begins.items()}
            for place, begin in begins.items():
                first = max(wanted[place], await self._archive.begin(place, begin))
                if first < begin:
                    async with aclosing(self._archive.read(place, first, begin)) as archived:
                        async for records in archived:
                            for record in records:
                                yield record
        async with aclosing(scan(self._consumer, chosen, start=start)) as logged:
            async for record in logged:
                yield record


@asynccontextmanager
async def open_log(bootstrap: str, archive: str | None = None) -> AsyncIterator[LogReader]:
    """Open a reader of the Kafka at ``bootstrap``. ``archive``: object store with what the log no longer has.

    Raises ``LookupError`` if a topic does not exist.
    """
    kept = None if archive is None else await open_archive(archive, bootstrap, [topic.name for topic in _TOPICS])
    async with open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS) as consumer:
        # Before the first assignment: afterwards the client requests metadata of assigned topics only.
        yield LogReader(consumer, {topic.name: await partitions_of(consumer, topic) for topic in _TOPICS}, kept)
