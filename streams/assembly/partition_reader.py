"""Committed records of one partition, in order, through librdkafka: it fetches and unpacks on threads of its own.

aiokafka takes 5 µs for a record with its headers on the thread that also folds, librdkafka 2.5 (DECISIONS, the reader).
Who may read which partition is not decided here: a reader belongs to no group.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import methodcaller
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.streams.raw import LogRecord

logger = logging.getLogger(__name__)

_BATCH = 200
"""Records asked for at a time: few enough to stay in the processor's cache until they are folded."""

_QUEUE_KB = 8 * 1024
"""Fetched and not yet read."""


# Written message.headers(), CPython's interpreter after a while no longer looks whether the client failed, and goes on
# with a broken list. Called so, the failure is an error.
_headers_of = methodcaller("headers")


class FetchedRecord(msgspec.Struct, gc=False):
    """A :class:`LogRecord` as librdkafka read it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class PartitionReader:
    """Reads one partition from an offset on; made by :func:`open_reader`."""

    def __init__(self, consumer: Consumer, topic: str, partition: int, offset: int) -> None:
        self.position = offset
        """Next offset to read. At the end of the log also past transaction markers, which are offsets without a
        record."""
        self._consumer = consumer
        self._place = TopicPartition(topic, partition, offset)
        self._consumer.assign([self._place])

    def read(self) -> list[LogRecord]:
        """The next records, or none; does not wait. Raises ``KafkaException`` where the partition cannot be read."""
        topic, partition = self._place.topic, self._place.partition
        records: list[LogRecord] = []
        messages: list[Any] = self._consumer.consume(_BATCH, 0)
        for message in messages:
            error = message.error()
            if error is None:
                _, timestamp = message.timestamp()
                try:
                    headers = _headers_of(message) or []
                except (SystemError, UnicodeDecodeError):  # a name is not UTF-8, and the client stumbles over it
                    headers = []
                record = FetchedRecord(
                    topic, partition, message.offset(), timestamp, message.key(), message.value(), headers
                )
                records.append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.position = message.offset()
            else:
                raise KafkaException(error)
        if records:
            self.position = max(self.position, records[-1].offset + 1)
        return records

    @property
    def end(self) -> int | None:
        """The log's end as of the last fetch; ``None`` before it."""
        _, end = self._consumer.get_watermark_offsets(self._place, cached=True)
        return end if end >= 0 else None


@asynccontextmanager
async def open_reader(
    bootstrap: str, topic: str, partition: int, offset: int, *, committed: bool = True
) -> AsyncIterator[PartitionReader]:
    """A reader of ``topic[partition]`` from ``offset`` on, closed at the end; ``committed`` or of all records."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",  # must be there, and is not used: nothing is subscribed to or committed
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "check.crcs": True,
        "queued.max.messages.kbytes": _QUEUE_KB,
        # With a full queue it would look again after a second, by default.
        "fetch.queue.backoff.ms": 2,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
    }
    consumer = Consumer(settings, logger=logger)
    try:
        yield PartitionReader(consumer, topic, partition, offset)
    finally:
        await asyncio.to_thread(consumer.close)
