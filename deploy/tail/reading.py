"""Reads a topic in order of time for `headrace tail`: from a start position to the current end, or without end."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from functools import partial

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.deploy.errors import StackError
from headrace.deploy.tail.start import StartPosition
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import report_expired
from headrace.schemas.kafka.reading import AT_ONCE, KafkaRecord, partitions_of
from headrace.schemas.topics import Topic
from headrace.streams.replay.order import StreamTimeOrder

POLL_MS = 500
"""Longest wait of a poll for new records."""


async def read(
    bootstrap: str, topic: str, start: StartPosition, *, follow: bool = False
) -> AsyncGenerator[list[KafkaRecord]]:
    """Yield the committed records of ``topic`` in batches, in order of time, up to the current end unless ``follow``.

    Up to the current end, records are in order across partitions and batches, with at most :data:`AT_ONCE` records per
    partition in memory (``start.last`` records per partition if that is set). After it, they are in order within a
    batch. Records that retention deletes before they are read are reported on standard error. Raises
    :class:`StackError` if the broker has no such topic.
    """
    async with open_consumer(bootstrap, on_expired=partial(report_expired, "tail")) as consumer:
        partitions = await _partitions(consumer, topic)
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        if start.last is None:
            offsets = begins if start.time_ms is None else await _offsets_at(consumer, ends, start.time_ms)
            consumer.assign(partitions)
            _seek(consumer, offsets)
            async for batch in _merged(consumer, ends):
                yield batch
        else:
            consumer.assign(partitions)
            _seek(consumer, ends)
            if start.last and (latest := await _last(consumer, begins, ends, start.last)):
                yield _in_order(latest)[-start.last :]
        # Records after the end that were fetched above were not yielded: read them again.
        _seek(consumer, ends)
        while follow:
            batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=AT_ONCE)
            if batch := _in_order(record for records in batches.values() for record in records):
                yield batch


async def _partitions(consumer: AIOKafkaConsumer, name: str) -> list[TopicPartition]:
    known = await consumer.topics()
    if name not in known:
        names = ", ".join(sorted(each for each in known if not each.startswith("__"))) or "none"
        raise StackError(
            f"The broker has no topic {name!r}; it has: {names}. `headrace topics --create` creates headrace's."
        )
    return await partitions_of(consumer, Topic(name, key="", models=(), partitions=1, about=""))


async def _offsets_at(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], time_ms: int
) -> dict[TopicPartition, int]:
    """Returns the first offset of each partition that was written at ``time_ms`` or later, or the partition's end."""
    found = await consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {partition: first.offset if (first := found.get(partition)) else end for partition, end in ends.items()}


def _seek(consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
    for partition, offset in offsets.items():
        consumer.seek(partition, offset)


async def _merged(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> AsyncIterator[list[KafkaRecord]]:
    """Yield batches from the consumer's position to ``ends``; reads only partitions that may have the next record."""
    order: StreamTimeOrder[TopicPartition, KafkaRecord] = StreamTimeOrder(sorted(ends))
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
    """Returns the last ``count`` records of each partition.

    Transaction markers and aborted records take offsets too: if fewer records were found, search further back.
    """
    window, found = count, dict[TopicPartition, "deque[KafkaRecord]"]()
    incomplete = {partition for partition, end in ends.items() if begins[partition] < end}
    while incomplete:
        firsts = {partition: max(begins[partition], ends[partition] - window) for partition in incomplete}
        _seek(consumer, firsts)
        found |= {partition: deque(maxlen=count) for partition in incomplete}
        left = set(incomplete)
        while left:
            async for partition, records, is_last in _read(consumer, ends, left):
                found[partition].extend(records)
                if is_last:
                    left.discard(partition)
        incomplete = {each for each in incomplete if len(found[each]) < count and firsts[each] > begins[each]}
        window *= 4
    return [record for records in found.values() for record in records]


async def _read(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
) -> AsyncIterator[tuple[TopicPartition, list[KafkaRecord], bool]]:
    """Yield the next records of the partitions ``wanted`` before ``ends``, and whether these are the last ones."""
    wanted = list(wanted)
    ended = {partition for partition in wanted if await consumer.position(partition) >= ends[partition]}
    # If a partition has ended, report that without waiting for records of the others.
    batches = {} if ended else await consumer.getmany(*wanted, timeout_ms=POLL_MS, max_records=AT_ONCE)
    for partition in wanted:
        records = [record for record in batches.get(partition, ()) if record.offset < ends[partition]]
        # The position advances past transaction markers, which take an offset but are not records.
        yield partition, records, partition in ended or await consumer.position(partition) >= ends[partition]


def _in_order(records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))
