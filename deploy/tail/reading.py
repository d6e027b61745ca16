"""Reading a topic for `headrace tail`: from a place, to the end as of now or on and on, in order of time."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.deploy.errors import StackError
from headrace.deploy.tail.start import Start
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of
from headrace.schemas.topics import Topic

POLL_MS = 500
"""Longest wait for records before looking again."""


async def read(bootstrap: str, topic: str, start: Start, *, follow: bool = False) -> AsyncGenerator[list[KafkaRecord]]:
    """Committed records of ``topic`` in batches, each in order of time; ends at the end as of now unless ``follow``.

    Raises :class:`StackError` where the broker has no such topic.
    """
    async with open_consumer(bootstrap) as consumer:
        partitions = await _partitions(consumer, topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        if start.last is None:
            await _seek(consumer, partitions, start, ends)
            async for batch in _until(consumer, ends):
                yield batch
        else:
            latest = [record for each in partitions for record in await _last(consumer, each, ends[each], start.last)]
            if start.last and latest:
                yield _in_order(latest)[-start.last :]
            for partition, end in ends.items():
                consumer.seek(partition, end)
        while follow:
            batch = _in_order(_flat(await consumer.getmany(timeout_ms=POLL_MS)))
            if batch:
                yield batch


async def _partitions(consumer: AIOKafkaConsumer, name: str) -> list[TopicPartition]:
    known = await consumer.topics()
    if name not in known:
        names = ", ".join(sorted(each for each in known if not each.startswith("__"))) or "none"
        raise StackError(f"The broker has no topic {name!r}; it has: {names}. `headrace topics --create` makes ours.")
    return await partitions_of(consumer, Topic(name, key="", models=(), partitions=1, about=""))


async def _seek(
    consumer: AIOKafkaConsumer, partitions: list[TopicPartition], start: Start, ends: dict[TopicPartition, int]
) -> None:
    if start.time_ms is None:
        await consumer.seek_to_beginning(*partitions)
        return
    found = await consumer.offsets_for_times(dict.fromkeys(partitions, start.time_ms))
    for partition in partitions:
        place = found.get(partition)
        consumer.seek(partition, place.offset if place else ends[partition])


async def _until(consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> AsyncIterator[list[KafkaRecord]]:
    """Batches from where the consumer stands to ``ends``."""
    left = [partition for partition, end in ends.items() if await consumer.position(partition) < end]
    while left:
        batch = _flat(await consumer.getmany(*left, timeout_ms=POLL_MS))
        inside = [record for record in batch if record.offset < ends[TopicPartition(record.topic, record.partition)]]
        if inside:
            yield _in_order(inside)
        # The position passes transaction markers, which are offsets without a record.
        left = [partition for partition in left if await consumer.position(partition) < ends[partition]]


async def _last(consumer: AIOKafkaConsumer, partition: TopicPartition, end: int, count: int) -> list[KafkaRecord]:
    """The partition's last ``count`` records. Markers and aborted records take offsets too: look further back then."""
    begin = (await consumer.beginning_offsets([partition]))[partition]
    window = count
    while count:
        first = max(begin, end - window)
        consumer.seek(partition, first)
        found: list[KafkaRecord] = []
        async for batch in _until(consumer, {partition: end}):
            found = [*found, *batch][-count:]
        if len(found) >= count or first == begin:
            return found
        window *= 4
    return []


def _flat(batches: dict[TopicPartition, list[KafkaRecord]]) -> list[KafkaRecord]:
    return [record for records in batches.values() for record in records]


def _in_order(records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))
