"""Reads individual records of a topic by partition and offset, in a few contiguous ranges that skip long gaps."""

import asyncio
from collections.abc import Collection
from typing import TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.kafka.reading import STALLED_S, KafkaRecord, Stall
from headrace.schemas.topics import Topic

Place: TypeAlias = tuple[int, int]
"""Partition and offset."""

FETCH_WAIT_MS = 10
"""A fetch that waits for new records at the end of the log delays the next seek; the client's default is 500."""

READ_OVER = 64
"""Longest gap that is read instead of skipped by a seek: a seek costs a fetch and discards records already fetched."""

_POLL_S = 0.1


async def read_back(bootstrap: str, topic: Topic, places: Collection[Place]) -> dict[Place, KafkaRecord]:
    """Return the committed records of ``topic`` at ``places``, by partition and in order, using a new consumer.

    Records that retention has deleted are omitted: the caller knows which, and what that means.
    """
    async with open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS, on_expired=skip_expired) as consumer:
        partitions = [TopicPartition(topic.name, partition) for partition in {partition for partition, _ in places}]
        consumer.assign(partitions)
        consumer.pause(*partitions)
        return await read_places(consumer, topic, places)


async def read_places(
    consumer: AIOKafkaConsumer,
    topic: Topic,
    places: Collection[Place],
    *,
    wait_s: float = 0.0,
    stalled_s: float = STALLED_S,
) -> dict[Place, KafkaRecord]:
    """Return the committed records of ``topic`` at ``places``, using ``consumer``, all of whose partitions are paused.

    Waits up to ``wait_s`` for records beyond the end of the log. Omits records that are still missing then, that
    retention has deleted, or whose partition is not assigned. Raises aiokafka's errors, and ``KafkaTimeoutError`` if
    the broker returns nothing for ``stalled_s``.
    """
    found: dict[Place, KafkaRecord] = {}
    for partition, offsets in _by_partition(places).items():
        for first, last in contiguous_ranges(offsets, READ_OVER):
            place = TopicPartition(topic.name, partition)
            for record in await read_range(consumer, place, first, last + 1, wait_s=wait_s, stalled_s=stalled_s):
                if record.offset in offsets:
                    found[partition, record.offset] = record
    return found


async def read_range(
    consumer: AIOKafkaConsumer,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    wait_s: float = 0.0,
    stalled_s: float = STALLED_S,
) -> list[KafkaRecord]:
    """Return the committed records of ``[start, end)``; fewer if the log is still shorter after ``wait_s``.

    The partition is paused before and after, like all others, so that the client fetches nothing else. Raises the same
    errors as :func:`read_places`.
    """
    records: list[KafkaRecord] = []
    if start >= end or partition not in consumer.assignment():
        return records
    clock = asyncio.get_running_loop().time
    deadline = clock() + wait_s
    # A seek past the end would reset the consumer to the start of the log.
    while (known := (await consumer.end_offsets([partition]))[partition]) < end and clock() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    end = min(end, known)
    if start >= end:
        return records
    consumer.seek(partition, start)
    consumer.resume(partition)
    stall = Stall(stalled_s)
    try:
        # The position advances past offsets without a record: transaction markers, records that retention deleted.
        while (position := await consumer.position(partition)) < end:
            stall.moved_to(position)
            batches = await consumer.getmany(partition, timeout_ms=200)
            records.extend(record for record in batches.get(partition, ()) if record.offset < end)
    finally:
        consumer.pause(partition)
    return records


def contiguous_ranges(offsets: Collection[int], max_gap: int) -> list[tuple[int, int]]:
    """Return ``offsets`` as ascending inclusive ranges; ranges with at most ``max_gap`` offsets between them are
    merged."""
    ranges: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if ranges and offset - ranges[-1][1] - 1 <= max_gap:
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
    return ranges


def _by_partition(places: Collection[Place]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for partition, offset in sorted(places):
        found.setdefault(partition, set()).add(offset)
    return found
