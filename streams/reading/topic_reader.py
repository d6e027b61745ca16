"""Reads a topic to the end of its log with librdkafka, at a third of the processor time of aiokafka's consumer.

    async for record in read_topic("localhost:9092", EVENTS, start={0: 7104}): …

Of few records, opening a reader for each partition would cost more than it saves: they are read with aiokafka. So is
the rest of a topic that librdkafka cannot read on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from aiokafka import TopicPartition
from confluent_kafka import KafkaException

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import Expired
from headrace.schemas.kafka.reading import AT_ONCE, Stall, first_offsets, partitions_of, read_to_end, scan
from headrace.schemas.topics import Topic
from headrace.streams.raw import LogRecord
from headrace.streams.reading.partition_reader import PartitionReader, start_reader

logger = logging.getLogger(__name__)

FEW = 2_000
"""Number of unread offsets up to which aiokafka reads them."""

_QUEUE_KB = 2 * 1024
"""Fetched and unread payloads, in KiB, from which on nothing more is fetched."""
_IDLE_S = 0.005
"""Pause in seconds while nothing has been fetched."""


async def read_topic(
    bootstrap: str, topic: Topic, *, start: Mapping[int, int], on_expired: Expired | None = None
) -> AsyncIterator[LogRecord]:
    """Yields every committed record of ``topic`` from ``start`` (offset by partition; default: the start of the log) to
    the end of the log at the time of the call, partition by partition.

    Arguments and errors as :func:`headrace.schemas.kafka.reading.read_to_end`.
    """
    async with open_consumer(bootstrap, on_expired=on_expired) as consumer:
        places = await partitions_of(consumer, topic)
        ends, firsts = await consumer.end_offsets(places), await first_offsets(consumer, places, start=start)
        following = {place.partition: offset for place, offset in firsts.items()}
        if sum(max(0, ends[place] - firsts[place]) for place in places) <= FEW:
            async for record in scan(consumer, places, start=following):
                yield record
            return
    try:
        for place in places:
            async for read in _read(bootstrap, place, firsts[place], ends[place]):
                yield read
                following[place.partition] = read.offset + 1
            following[place.partition] = max(following[place.partition], ends[place])
    except KafkaException as error:
        logger.warning("%s is read on more slowly: %s", topic.name, error)
        async for record in read_to_end(bootstrap, topic, start=following, on_expired=on_expired):
            yield record


async def _read(bootstrap: str, place: TopicPartition, start: int, end: int) -> AsyncIterator[LogRecord]:
    """Yields the records in ``[start, end)``. Raises ``KafkaException``, and ``KafkaTimeoutError`` as ``scan``."""
    if start >= end:
        return
    stall = Stall()
    reader: PartitionReader = start_reader(bootstrap, place.topic, place.partition, start, queue_kb=_QUEUE_KB)
    try:
        while reader.position < end:
            records = reader.read(AT_ONCE)
            for record in records:
                if record.offset < end:
                    yield record
            if records:
                await asyncio.sleep(0)
            else:
                stall.moved_to(reader.position)
                await asyncio.sleep(_IDLE_S)
    finally:
        await asyncio.to_thread(reader.close)
