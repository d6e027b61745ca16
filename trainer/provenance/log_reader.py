"""Reading the log for provenance: a run's steps and versions in order, and records by their place. No logic of its own.

Everything is a stream or a bounded number of places: what is read is never held beyond what the caller keeps.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from headrace.schemas.kafka.clients import open_consumer
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
"""What provenance reads."""


class LogReader:
    """One consumer that goes where it is asked to. One reader at a time."""

    def __init__(self, consumer: AIOKafkaConsumer, partitions: Mapping[str, Sequence[TopicPartition]]) -> None:
        """Reads these partitions (by topic) through ``consumer``, which has no subscription; see :func:`open_log`."""
        self._consumer = consumer
        self._partitions = partitions

    async def bounds(self, topic: Topic) -> dict[int, Bounds]:
        """What each partition of ``topic`` holds as of now."""
        partitions = self._partitions[topic.name]
        begins = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        return {each.partition: Bounds(begins[each], ends[each]) for each in partitions}

    async def at(
        self, topic: Topic, places: Mapping[Place, str]
    ) -> tuple[dict[Place, KafkaRecord], list[MissingRecord]]:
        """The committed records at ``places`` (place → what should stand there), and those that are missing."""
        partitions = self._partitions[topic.name]
        self._consumer.assign(partitions)
        self._consumer.pause(*partitions)
        found = await read_places(self._consumer, topic, places)
        lost = sorted(places.keys() - found.keys())
        # Asked afterwards: retention goes on while we read.
        bounds = await self.bounds(topic) if lost else {}
        return found, [absent(topic.name, place, places[place], bounds.get(place[0])) for place in lost]

    async def since(self, topic: Topic, time_ms: int) -> dict[int, int]:
        """Partition → the first offset written at ``time_ms`` (Unix) or later; the end where there is none."""
        partitions = self._partitions[topic.name]
        found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
        ends = await self._consumer.end_offsets(partitions)
        return {each.partition: place.offset if (place := found.get(each)) else ends[each] for each in partitions}

    def home(self, topic: Topic, key: str) -> int:
        """The partition that a record of this key is written to, by Kafka's default partitioner."""
        numbers = [each.partition for each in self._partitions[topic.name]]
        chosen: int = _PARTITIONER(key.encode(), numbers, numbers)
        return chosen

    def others(self, topic: Topic, partition: int) -> list[int]:
        """The topic's other partitions."""
        return [each.partition for each in self._partitions[topic.name] if each.partition != partition]

    def scan(
        self, topic: Topic, start: Mapping[int, int] | None = None, *, partitions: Collection[int] | None = None
    ) -> AsyncGenerator[KafkaRecord]:
        """Committed records from ``start`` (partition → offset; default the beginning) to the end as of now.

        ``partitions``: only these; default all. Nothing else may be read until it is done.
        """
        every = self._partitions[topic.name]
        chosen = [each for each in every if partitions is None or each.partition in partitions]
        return scan(self._consumer, chosen, start=start)


@asynccontextmanager
async def open_log(bootstrap: str) -> AsyncIterator[LogReader]:
    """A reader of the Kafka at ``bootstrap``. Raises ``LookupError`` where one of our topics is not there."""
    async with open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS) as consumer:
        # Before the first assignment: from then on the client asks after the assigned topics only.
        yield LogReader(consumer, {topic.name: await partitions_of(consumer, topic) for topic in _TOPICS})
