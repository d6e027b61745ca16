"""A batch of ``events`` that cannot be unpacked: librdkafka stays before it for ever, so the assembler steps over it.

Of such a batch only its header is read: the offsets that it has. It stays in the log; a dead letter and an alert say
where.
"""

import asyncio
import time

from aiokafka import TopicPartition
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.inflation import MAX_INFLATED_BYTES
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.letters.dead_letters import dead_letter_message
from headrace.streams.raw import Outgoing, StoredRecord

KIND = "batch_unreadable"
"""Kind of the alert."""

_PEEK_S = 30.0


def is_unreadable_batch(error: KafkaException) -> bool:
    """Whether ``error`` says that a batch could not be unpacked."""
    return bool(error.args[0].code() == KafkaError._BAD_COMPRESSION)


async def first_behind(bootstrap: str, place: TopicPartition, offset: int) -> int:
    """The first offset behind ``offset`` at which a reader can go on, where a batch at ``offset`` cannot be unpacked;
    ``offset`` itself where aiokafka, which bounds what it inflates, finds a record there.
    """
    deadline = time.monotonic() + _PEEK_S
    async with open_consumer(bootstrap) as consumer:
        consumer.assign([place])
        consumer.seek(place, offset)
        while time.monotonic() < deadline:
            found = await consumer.getmany(place, timeout_ms=500, max_records=1)
            for record in found.get(place, ()):
                return int(record.offset)
            if (position := await consumer.position(place)) > offset:
                return int(position)
            await asyncio.sleep(0)
    return offset


def letters_of_batch(place: TopicPartition, begin: int, end: int, log_ms: int) -> list[Outgoing]:
    """The dead letter and the alert of what stands at ``[begin, end)`` of ``place``."""
    message = (
        f"a batch at the offsets {begin} to {end - 1} cannot be unpacked, or inflates to more than "
        f"{MAX_INFLATED_BYTES // 1_000_000} MB: it stands at {place.topic}[{place.partition}] only"
    )
    record = StoredRecord(place.topic, place.partition, begin, log_ms, None, None, ())
    letter = dead_letter_message(record, UnreadableRecord(DeadLetterError.OVERSIZE, message))
    told = alert_message(
        KIND,
        f"{message}. Whoever wrote it can write to this topic, and should not",
        source=SOURCE,
        subject=f"{place.topic}[{place.partition}]@{begin}",
        time_ms=log_ms,
        about=(place.topic, place.partition, begin),
        details={"topic": place.topic, "partition": place.partition, "offset": begin, "end": end},
    )
    return [Outgoing(DEAD_LETTERS, letter, log_ms), Outgoing(ALERTS, told, log_ms)]
