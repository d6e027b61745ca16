"""Records that ClickHouse cannot store: their originals in Kafka, and the alert about them."""

import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing
from functools import partial

from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import scan
from headrace.schemas.records.alert import Severity
from headrace.schemas.wire import Message, UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.clickhouse.existing_topic import while_it_exists
from headrace.streams.dead_letters.build import time_of
from headrace.streams.raw import LogRecord

log = logging.getLogger(__name__)

SOURCE = "/streams/sink"
"""Source of the sink's records."""
KIND = "record_unstorable"
"""Kind of the alert about records that ClickHouse cannot store."""


async def originals_of(
    bootstrap: str, place: TopicPartition, topic_id: str, offsets: Collection[int]
) -> list[LogRecord]:
    """Read the records of ``place`` at ``offsets`` again from Kafka, in order; none if the topic, of the id
    ``topic_id``, was deleted. Tries again while Kafka does not answer.
    """
    if not offsets:
        return []
    found = await while_it_exists(bootstrap, place.topic, topic_id, partial(_read, bootstrap, place, offsets))
    if found is None:
        log.error("%s[%d]: its topic was deleted, and the records at %s are in no table", *place, sorted(offsets))
    return found or []


async def _read(bootstrap: str, place: TopicPartition, offsets: Collection[int]) -> list[LogRecord]:
    """As :func:`originals_of`, once."""
    found: list[LogRecord] = []
    start = {place.partition: min(offsets)}
    async with open_consumer(bootstrap) as consumer, aclosing(scan(consumer, [place], start=start)) as records:
        async for record in records:
            if record.offset in offsets:
                found.append(record)
            if record.offset >= max(offsets):
                break
    if missing := set(offsets) - {record.offset for record in found}:
        log.error("%s[%d]: the records at %s are no longer in Kafka, and are in no table", *place, sorted(missing))
    return found


def unstored_alert(
    topic: str, partition: int, first: int, unstored: Sequence[tuple[LogRecord, UnreadableRecord]]
) -> Message:
    """Returns the alert about records of the batch that starts at ``first``; a repeated batch gives the same id."""
    record, why = unstored[0]
    place = f"{topic}[{partition}]@{record.offset}"
    return alert_message(
        KIND,
        f"{len(unstored)} records are in no table of ClickHouse, the first is {place}: {why}"[:1000]
        + ". They are in dead-letters with all their bytes.",
        source=SOURCE,
        subject=place,
        time_ms=time_of(record),
        about=(topic, partition, first),
        severity=Severity.WARNING,
        details={"topic": topic, "partition": partition, "offset": record.offset, "records": len(unstored)},
    )
