"""Handles a batch of ``events`` that cannot be decompressed: librdkafka never gets past it, so the assembler skips it.

Only the batch header, which has its offsets, is read. The batch stays in Kafka; a dead letter and an alert report its
position.
"""

import asyncio
import time

from aiokafka import TopicPartition
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.inflation import MAX_INFLATED_BYTES, skipped_batches
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.dead_letters.build import dead_letter_message
from headrace.streams.raw import Outgoing, StoredRecord

KIND = "batch_unreadable"
"""Kind of the alert."""

_PEEK_S = 30.0


def is_unreadable_batch(error: KafkaException) -> bool:
    """Whether ``error`` means that a batch could not be decompressed."""
    return bool(error.args[0].code() == KafkaError._BAD_COMPRESSION)


async def unreadable_batch(bootstrap: str, place: TopicPartition, offset: int) -> range | None:
    """Returns the offsets of the first batch from ``offset`` on that cannot be decompressed.

    They are those of the batch header, wherever in front of it the reader stopped: the dead letter is the same in every
    reading of the log. Returns ``None`` if aiokafka, whose decompression is bounded, reads a record first.
    """
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
                    return None
                await asyncio.sleep(0)
    return None


def batch_outputs(place: TopicPartition, offsets: range, stream_ms: int) -> list[Outgoing]:
    """Returns the dead letter and the alert for the batch at ``offsets`` of ``place``."""
    begin, end = offsets.start, offsets.stop
    message = (
        f"the batch at offsets {begin} to {end - 1} cannot be decompressed, or inflates to more than "
        f"{MAX_INFLATED_BYTES // 1_000_000} MB: it exists only in {place.topic}[{place.partition}]"
    )
    record = StoredRecord(place.topic, place.partition, begin, stream_ms, None, None, ())
    dead_letter = dead_letter_message(record, UnreadableRecord(DeadLetterError.OVERSIZE, message))
    alert = alert_message(
        KIND,
        f"{message}. Its producer has write access to this topic and should not",
        source=SOURCE,
        subject=f"{place.topic}[{place.partition}]@{begin}",
        time_ms=stream_ms,
        about=(place.topic, place.partition, begin),
        details={"topic": place.topic, "partition": place.partition, "offset": begin, "end": end},
    )
    return [Outgoing(DEAD_LETTERS, dead_letter, stream_ms), Outgoing(ALERTS, alert, stream_ms)]
