"""The partitions that the consumer group assigns to a sink, and how each is read.

Nine of ten records are events. Each partition of ``events`` is read by a :class:`PartitionReader`, a quarter of the
processor time of aiokafka's consumer. That consumer, which is the group's member, reads the other topics; in it the
partitions of ``events``, and all that are not started, are paused.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from confluent_kafka import KafkaException

from headrace.schemas.topics import EVENTS
from headrace.streams.raw import LogRecord
from headrace.streams.reading.partition_reader import PartitionReader, start_reader
from headrace.streams.reading.unreadable_batch import unreadable_batch

log = logging.getLogger(__name__)

QUEUE_KB = 4 * 1024
"""Fetched and unread payloads of a partition of ``events``, in KiB, from which on nothing more is fetched."""


class AssignedPartitions(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types here
    """Reads the partitions assigned to ``consumer``, and counts rebalances: uncommitted records read before a rebalance
    must be read again.
    """

    def __init__(self, bootstrap: str, consumer: AIOKafkaConsumer) -> None:
        """``consumer`` must not reset offsets: ``auto_offset_reset="none"``."""
        self.generation = 0
        """Number of rebalances, each counted at its begin and at its end."""
        self._bootstrap = bootstrap
        self._consumer = consumer
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._failed: dict[TopicPartition, KafkaException] = {}
        self._unreadable: dict[TopicPartition, Exception] = {}

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.generation += 1

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.generation += 1
        places = list(assigned)
        self._consumer.pause(*places)
        for place in places:  # without a position the client would look up the committed offset, and use it
            self._consumer.seek(place, 0)

    async def start(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read each of these partitions from its offset on. Raises ``IllegalStateError`` if one was reassigned."""
        await self._close(offsets.keys())
        for place, offset in offsets.items():
            if place.topic == EVENTS.name:
                self._readers[place] = self._reader_from(place, offset)
            else:
                self._consumer.seek(place, offset)
                self._consumer.resume(place)

    async def stop(self, places: Collection[TopicPartition]) -> None:
        """Read nothing more of ``places`` until they are started again."""
        await self._close(places)
        self._consumer.pause(*[place for place in places if place in self._consumer.assignment()])

    async def read(self, most: int) -> dict[TopicPartition, Sequence[LogRecord]]:
        """Returns the next records by partition, without waiting for records: at most ``most`` of a partition of
        ``events``, and as many of all others. A partition that cannot be read on is left out: :meth:`unreadable`.
        """
        generation = self.generation
        while self._failed:
            await self._skip_batch(*self._failed.popitem())
        try:
            found: dict[TopicPartition, Sequence[LogRecord]] = await self._consumer.getmany(max_records=most)
        except OffsetOutOfRangeError as error:
            places = error.args[0].keys() & self._consumer.assignment()
            self._consumer.pause(*places)
            self._unreadable.update(dict.fromkeys(places, error))
            found = {}
        if generation != self.generation:
            return {}
        # From here on nothing is awaited: readers move on only if the caller takes their records, because positions are
        # committed.
        for place, reader in self._readers.items():
            try:
                records = reader.read(most)
            except KafkaException as error:
                self._failed[place] = error
                continue
            if records:
                found[place] = records
        return found

    def unreadable(self) -> dict[TopicPartition, Exception]:
        """Returns the partitions that could not be read on since the last call, for example because retention deleted
        unread records; each must be started again.
        """
        found, self._unreadable = self._unreadable, {}
        return found

    def end(self, place: TopicPartition) -> int | None:
        """Returns the log end offset as of the last fetch; ``None`` before it."""
        if (reader := self._readers.get(place)) is not None:
            return reader.end
        if place.topic == EVENTS.name or place not in self._consumer.assignment():
            return None
        end: int | None = self._consumer.last_stable_offset(place)
        return end

    async def position(self, place: TopicPartition) -> int:
        """Returns the offset up to which ``place`` was read, past transaction markers, which use offsets without a
        record; 0 while it is not read. Raises ``IllegalStateError`` if it was reassigned.
        """
        if place.topic == EVENTS.name:
            reader = self._readers.get(place)
            return 0 if reader is None else reader.position
        position: int = await self._consumer.position(place)
        return position

    async def close(self) -> None:
        """Stop reading ``events``."""
        await self._close([*self._readers, *self._failed, *self._unreadable])

    async def _close(self, places: Collection[TopicPartition]) -> None:
        readers = [self._readers.pop(place, None) for place in places]
        for place in places:
            self._failed.pop(place, None)
            self._unreadable.pop(place, None)
        await asyncio.gather(*[asyncio.to_thread(reader.close) for reader in readers if reader is not None])

    def _reader_from(self, place: TopicPartition, offset: int) -> PartitionReader:
        return start_reader(self._bootstrap, place.topic, place.partition, offset, queue_kb=QUEUE_KB)

    async def _skip_batch(self, place: TopicPartition, error: KafkaException) -> None:
        """Read ``place`` on behind the batch that cannot be decompressed: the assembler reports it. After any other
        ``error`` it is unreadable.
        """
        reader = self._readers.pop(place)
        await asyncio.to_thread(reader.close)
        try:
            skipped = await unreadable_batch(self._bootstrap, place, reader.position, error)
        except KafkaException as unknown:
            self._unreadable[place] = unknown
            return
        log.error(
            "%s[%d]: the batch at %d to %d cannot be decompressed and is skipped",
            place.topic, place.partition, skipped.start, skipped.stop - 1,
        )  # fmt: skip
        self._readers[place] = self._reader_from(place, skipped.stop)
