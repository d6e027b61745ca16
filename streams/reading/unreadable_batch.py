"""Finds a batch that cannot be decompressed: librdkafka never gets past it, so its reader starts again behind it.

Only the batch header, which has its offsets, is read.
"""

import asyncio
import time

from aiokafka import TopicPartition
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.inflation import skipped_batches

_PEEK_S = 30.0


async def unreadable_batch(bootstrap: str, place: TopicPartition, offset: int, error: KafkaException) -> range:
    """Returns the offsets of the batch that librdkafka could not decompress when it had read to ``offset``: the first
    compressed one from there on. Raises ``error``, the reader's, if it is another one or an uncompressed record comes
    first.

    They are those of the batch header, wherever in front of it the reader stopped: the dead letter is the same in every
    reading of the log. Nothing is decompressed, because clients differ in what they refuse: if zstd does not state the
    size, librdkafka doubles its buffer and refuses batches below its limit.
    """
    if error.args[0].code() != KafkaError._BAD_COMPRESSION:
        raise error
    deadline = time.monotonic() + _PEEK_S
    with skipped_batches() as skipped:
        async with open_consumer(bootstrap) as consumer:
            consumer.assign([place])
            consumer.seek(place, offset)
            while time.monotonic() < deadline:
                found = await consumer.getmany(place, timeout_ms=500, max_records=1)
                if skipped:
                    return skipped[0]
                if found:
                    raise error
                await asyncio.sleep(0)
    raise error
