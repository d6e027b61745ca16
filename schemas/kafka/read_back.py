"""Reading single records of a topic again, by where they stand: few contiguous ranges, jumping over long gaps."""

import asyncio
from collections.abc import Collection
from typing import TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import STALLED_S, KafkaRecord, Stall
from headrace.schemas.topics import Topic

Place: TypeAlias = tuple[int, int]
"""Partition and offset."""

FETCH_WAIT_MS = 10
"""A fetch that waits for new records at the end of the log holds up the seek that follows; the default is 500."""

READ_OVER = 64
"""Records that are read over rather than jumped over: a jump costs a fetch, and throws away what was fetched."""

_POLL_S = 0.1


async def read_back(bootstrap: str, topic: Topic, places: Collection[Place]) -> dict[Place, KafkaRecord]:
    """The committed records of ``topic`` at ``places``, by partition and in order, through a consumer of its own.

    What is no longer there (past its retention) is left out.
    """
    async with open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS) as consumer:
        partitions = [TopicPartition(topic.name, partition) for partition in {partition for partition, _ in places}]
        consumer.assign(partitions)
        consumer.pause(*partitions)
        return await read_places(consumer, topic, places)


async def read_places(
    consumer: AIOKafkaConsumer,
    topic: Topic,
    places: Collection[Place],
    *,
    patience_s: float = 0.0,
    stalled_s: float = STALLED_S,
) -> dict[Place, KafkaRecord]:
    """The committed records of ``topic`` at ``places``, through ``consumer``, all of whose partitions are paused.

    A record that the log has not got to is waited for, up to ``patience_s``. What is not there then, is past its
    retention or stands in a partition that is not assigned is left out. Raises aiokafka's errors, and
    ``KafkaTimeoutError`` where the broker gives nothing for ``stalled_s``.
    """
    found: dict[Place, KafkaRecord] = {}
    for partition, offsets in _by_partition(places).items():
        for first, last in contiguous_ranges(offsets, READ_OVER):
            place = TopicPartition(topic.name, partition)
            for record in await read_range(
                consumer, place, first, last + 1, patience_s=patience_s, stalled_s=stalled_s
            ):
                if record.offset in offsets:
                    found[partition, record.offset] = record
    return found


async def read_range(
    consumer: AIOKafkaConsumer,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    patience_s: float = 0.0,
    stalled_s: float = STALLED_S,
) -> list[KafkaRecord]:
    """Committed records of ``[start, end)``; fewer where the log has not got that far after ``patience_s``.

    The partition is paused before and after, as all others are: nothing is fetched that was not asked for. Raises as
    :func:`read_places`.
    """
    records: list[KafkaRecord] = []
    if start >= end or partition not in consumer.assignment():
        return records
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_s
    # Seeking past the end would be answered with the beginning of the log.
    while (known := (await consumer.end_offsets([partition]))[partition]) < end and clock() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    end = min(end, known)
    if start >= end:
        return records
    consumer.seek(partition, start)
    consumer.resume(partition)
    stall = Stall(stalled_s)
    try:
        # The position passes what is not there: markers of transactions, what is past its retention.
        while (position := await consumer.position(partition)) < end:
            stall.moved_to(position)
            batches = await consumer.getmany(partition, timeout_ms=200)
            records.extend(record for record in batches.get(partition, ()) if record.offset < end)
    finally:
        consumer.pause(partition)
    return records


def contiguous_ranges(offsets: Collection[int], max_gap: int) -> list[tuple[int, int]]:
    """``offsets`` as ascending inclusive ranges; two join where at most ``max_gap`` unwanted offsets lie between."""
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
