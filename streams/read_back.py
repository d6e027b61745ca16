"""Reading single records of a topic again, by where they stand: each partition forwards, jumping over long gaps."""

from collections.abc import Collection, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.log import open_consumer
from headrace.schemas.topics import Topic
from headrace.streams.raw import LogRecord

FETCH_BYTES = 1024 * 1024
"""What is fetched at once: a few records. A larger record still comes whole."""
READ_OVER = 64
"""Records that are read over rather than jumped over: a jump costs a fetch, and throws away what was fetched."""


async def read_back(bootstrap: str, topic: Topic, places: Mapping[int, Collection[int]]) -> dict[int, list[LogRecord]]:
    """The committed records of ``topic`` at ``places`` (partition → offsets), by partition, in order.

    What is no longer there (past its retention) is left out.
    """
    found: dict[int, list[LogRecord]] = {}
    async with open_consumer(bootstrap, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        for partition, offsets in places.items():
            found[partition] = await _read(consumer, TopicPartition(topic.name, partition), sorted(set(offsets)))
    return found


async def _read(consumer: AIOKafkaConsumer, place: TopicPartition, wanted: list[int]) -> list[LogRecord]:
    consumer.assign([place])
    first = (await consumer.beginning_offsets([place]))[place]
    end = (await consumer.end_offsets([place]))[place]
    left = [offset for offset in wanted if first <= offset < end]
    found: list[LogRecord] = []
    position = -1
    while left:
        if not position <= left[0] <= position + READ_OVER:
            consumer.seek(place, left[0])
        records = (await consumer.getmany(place, timeout_ms=500)).get(place, [])
        found += [record for record in records if record.offset in left]
        # The position passes what is not there: markers of transactions, what was compacted away.
        position = await consumer.position(place)
        left = [offset for offset in left if offset >= position]
    return found
