"""Sends records with timestamps that every broker accepts: one, or many in batches."""

import random
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

AHEAD_MS = 50 * 60 * 1000
"""How far ahead of now a timestamp may be; Kafka's default is an hour."""


_CACHED_KEY_BYTES = 256
"""Longest key whose hash is cached."""


class OutgoingRecord(NamedTuple):
    """A record to send."""

    topic: str
    """Name of its topic."""
    key: bytes | None
    """Its key."""
    value: bytes | None
    """Its payload; ``None`` deletes the key from a compacted topic."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    """Its headers."""
    timestamp_ms: int | None = None
    """Stream time (Unix), limited by :func:`acceptable_ms`; ``None``: the time of sending."""
    partition: int | None = None
    """Its partition; ``None``: the one of its key."""


class Batch(NamedTuple):
    """Records of one partition, serialized together."""

    place: TopicPartition
    """Their partition."""
    builder: BatchBuilder
    """The serialized records."""
    indices: list[int]
    """The index of each in the sequence from which the batches were made."""


async def batched(producer: AIOKafkaProducer, records: Iterable[OutgoingRecord]) -> list[Batch]:
    """Serialize ``records`` into batches of the size that ``producer`` is set to, in the order of each partition.

    ``producer.send`` takes five times as long for a record, because it makes a future and looks for a batch for each.
    Raises ``MessageSizeTooLargeError`` for a record above the producer's ``max_request_size``, as ``send`` does: the
    broker checks the compressed size only, and consumers skip what decompresses to too much.
    """
    full: list[Batch] = []
    open_: dict[TopicPartition, Batch] = {}
    partitions: dict[str, list[int]] = {}
    for index, (topic, key, value, headers, timestamp_ms, partition) in enumerate(records):
        headers = list(headers)
        size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers)
        if size > producer._max_request_size:
            raise MessageSizeTooLargeError(
                f"a record of {size} bytes for {topic}: {producer._max_request_size} at most"
            )
        if partition is None:
            if topic not in partitions:
                partitions[topic] = sorted(await producer.partitions_for(topic))
            partition = partition_of(key, partitions[topic])
        place = TopicPartition(topic, partition)
        timestamp = None if timestamp_ms is None else acceptable_ms(timestamp_ms)
        record = {"timestamp": timestamp, "key": key, "value": value, "headers": headers}
        batch = open_.get(place)
        if batch is None or batch.builder.append(**record) is None:  # full; an empty one takes any record
            if batch is not None:
                full.append(batch)
            batch = open_[place] = Batch(place, producer.create_batch(), [])
            batch.builder.append(**record)
        batch.indices.append(index)
    batches = [*full, *open_.values()]
    for batch in batches:
        batch.builder.close()
    return batches


def partition_of(key: bytes | None, partitions: Sequence[int]) -> int:
    """Return the partition of ``key`` among all ``partitions``, in ascending order, as Kafka's own clients choose it; a
    random one without a key.
    """
    if key is None:
        return random.choice(partitions)
    hashed = _hash_of(key) if len(key) <= _CACHED_KEY_BYTES else int(murmur2(key))
    return partitions[(hashed & 0x7FFFFFFF) % len(partitions)]


@lru_cache(maxsize=8192)  # the hash is in Python, and the members of a group have one key
def _hash_of(key: bytes) -> int:
    return int(murmur2(key))


async def send(
    producer: AIOKafkaProducer,
    topic: Topic,
    message: Message,
    partition: int | None = None,
    *,
    timestamp_ms: int | None = None,
) -> Any:
    """Hand ``message`` to the producer; return an awaitable that resolves once the broker has stored it.

    ``timestamp_ms`` (Unix) is stream time, limited by :func:`acceptable_ms`; ``None``: the time of sending.
    """
    return await producer.send(
        topic.name,
        key=message.key,
        value=message.value,
        headers=message.headers,
        partition=partition,
        timestamp_ms=None if timestamp_ms is None else acceptable_ms(timestamp_ms),
    )


def acceptable_ms(timestamp_ms: int) -> int:
    """Limit ``timestamp_ms`` (Unix) to at least 0 and at most :data:`AHEAD_MS` ahead of the wall clock.

    Brokers refuse a record that is further ahead (``message.timestamp.after.max.ms``), and a transaction with such a
    record would fail at every retry.
    """
    return min(max(0, timestamp_ms), time.time_ns() // 1_000_000 + AHEAD_MS)
