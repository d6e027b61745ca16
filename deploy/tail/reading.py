"""Reading a topic for `headrace tail`: from a place, to the end as of now or on and on, in order of time."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.deploy.errors import StackError
from headrace.deploy.tail.start import Start
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import AT_ONCE, KafkaRecord, partitions_of
from headrace.schemas.topics import Topic
from headrace.streams.replay.order import LogTimeOrder

POLL_MS = 500
"""Longest wait for records before looking again."""


async def read(bootstrap: str, topic: str, start: Start, *, follow: bool = False) -> AsyncGenerator[list[KafkaRecord]]:
    """Committed records of ``topic`` in batches, in order of time; ends at the end as of now unless ``follow``.

    Up to that end the order holds across partitions and batches, with at most :data:`AT_ONCE` records of a partition in
    memory (``start.last`` holds as many as it asks for, of each); behind it, it holds within a batch.
    Raises :class:`StackError` where the broker has no such topic.
    """
    async with open_consumer(bootstrap) as consumer:
        partitions = await _partitions(consumer, topic)
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        if start.last is None:
            places = begins if start.time_ms is None else await _places_at(consumer, ends, start.time_ms)
            consumer.assign(partitions)
            _seek(consumer, places)
            async for batch in _merged(consumer, ends):
                yield batch
        else:
            consumer.assign(partitions)
            _seek(consumer, ends)
            if start.last and (latest := await _last(consumer, begins, ends, start.last)):
                yield _in_order(latest)[-start.last :]
        # Where reading to the end brought records from behind it, they were left out.
        _seek(consumer, ends)
        while follow:
            batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=AT_ONCE)
            if batch := _in_order(record for records in batches.values() for record in records):
                yield batch


async def _partitions(consumer: AIOKafkaConsumer, name: str) -> list[TopicPartition]:
    known = await consumer.topics()
    if name not in known:
        names = ", ".join(sorted(each for each in known if not each.startswith("__"))) or "none"
        raise StackError(f"The broker has no topic {name!r}; it has: {names}. `headrace topics --create` makes ours.")
    return await partitions_of(consumer, Topic(name, key="", models=(), partitions=1, about=""))


async def _places_at(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], time_ms: int
) -> dict[TopicPartition, int]:
    """The first offset written at ``time_ms`` or later in each partition, or its end."""
    found = await consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {partition: place.offset if (place := found.get(partition)) else end for partition, end in ends.items()}


def _seek(consumer: AIOKafkaConsumer, places: Mapping[TopicPartition, int]) -> None:
    for partition, offset in places.items():
        consumer.seek(partition, offset)


async def _merged(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> AsyncIterator[list[KafkaRecord]]:
    """Batches from where the consumer stands to ``ends``; only partitions that might be next are read."""
    order: LogTimeOrder[TopicPartition, KafkaRecord] = LogTimeOrder(sorted(ends))
    while order.starving:
        async for partition, records, is_last in _read(consumer, ends, order.starving):
            order.offer(partition, [(record.timestamp, record) for record in records])
            if is_last:
                order.end(partition)
        if batch := [record for _, _, record in order.ready()]:
            yield batch


async def _last(
    consumer: AIOKafkaConsumer, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], count: int
) -> list[KafkaRecord]:
    """The last ``count`` records of each partition.

    Markers and aborted records take offsets too: where fewer were found, look further back.
    """
    window, found = count, dict[TopicPartition, "deque[KafkaRecord]"]()
    short = {partition for partition, end in ends.items() if begins[partition] < end}
    while short:
        firsts = {partition: max(begins[partition], ends[partition] - window) for partition in short}
        _seek(consumer, firsts)
        found |= {partition: deque(maxlen=count) for partition in short}
        left = set(short)
        while left:
            async for partition, records, is_last in _read(consumer, ends, left):
                found[partition].extend(records)
                if is_last:
                    left.discard(partition)
        short = {each for each in short if len(found[each]) < count and firsts[each] > begins[each]}
        window *= 4
    return [record for records in found.values() for record in records]


async def _read(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
) -> AsyncIterator[tuple[TopicPartition, list[KafkaRecord], bool]]:
    """The next records of the partitions ``wanted`` before ``ends``, and whether they are the partition's last."""
    wanted = list(wanted)
    ended = {partition for partition in wanted if await consumer.position(partition) >= ends[partition]}
    # Those that have ended are said at once, rather than after a wait for records of the others.
    batches = {} if ended else await consumer.getmany(*wanted, timeout_ms=POLL_MS, max_records=AT_ONCE)
    for partition in wanted:
        records = [record for record in batches.get(partition, ()) if record.offset < ends[partition]]
        # The position passes transaction markers, which are offsets without a record.
        yield partition, records, partition in ended or await consumer.position(partition) >= ends[partition]


def _in_order(records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))
