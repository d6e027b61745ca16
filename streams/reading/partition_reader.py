"""Reads the committed records of one partition in order with librdkafka, which fetches and unpacks on its own threads.

With the extension module the records are arrivals with parsed headers, built without intermediate objects; else they
come from confluent-kafka's messages. A reader belongs to no group; partition assignment happens elsewhere.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, cimpl

from headrace.schemas.kafka.security import librdkafka_security
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord
from headrace.streams.reading.message_reader import BATCH, MessageReader

logger = logging.getLogger(__name__)

QUEUE_KB = 8 * 1024
"""Default of the fetched and unread payloads, in KiB, from which on nothing more is fetched. Of records of ordinary
size a process holds five times as much: with headers and librdkafka's own records, and with a last fetch, if that is
compressed tenfold or less. It is no bound: librdkafka makes a message of some 330 bytes of every record of a batch at
once, so a batch of 4 MB with five million empty records takes 1.6 GB."""


class PartitionReader(Protocol):
    """Reads one partition from an offset on; created by :func:`open_reader`."""

    @property
    def position(self) -> int:
        """Next offset to read. At the log end it is also past transaction markers, which use offsets without a
        record."""

    @property
    def end(self) -> int | None:
        """Log end offset as of the last fetch; ``None`` before it."""

    def read(self, most: int = BATCH) -> Sequence[LogRecord]:
        """Returns the next records, at most ``most``, or none; does not wait. Raises ``KafkaException`` if the
        partition cannot be read, after all records before the error were returned.
        """

    def close(self) -> None:
        """Close the connection; may block."""


class ArrivalReader:
    """A :class:`PartitionReader` whose records are arrivals; needs the extension module."""

    def __init__(self, settings: Mapping[str, str], topic: str, partition: int, offset: int) -> None:
        # The librdkafka that confluent-kafka is linked with, bundled or from the system.
        self._log = SPEEDUPS.PartitionLog(cimpl.__file__, dict(settings), topic, partition, offset)
        self.close = self._log.close
        self._error = 0

    @property
    def position(self) -> int:
        return self._log.position

    @property
    def end(self) -> int | None:
        return self._log.end

    def read(self, most: int = BATCH) -> Sequence[LogRecord]:
        if not self._error:
            arrivals, self._error = self._log.read(most)
            if arrivals or not self._error:
                return arrivals
        error, self._error = self._error, 0
        raise KafkaException(KafkaError(error))


def start_reader(
    bootstrap: str, topic: str, partition: int, offset: int, *, queue_kb: int = QUEUE_KB
) -> PartitionReader:
    """Returns a reader of the committed records of ``topic[partition]`` from ``offset`` on, which its user closes.
    ``queue_kb``: fetched and unread payloads, in KiB, from which on nothing more is fetched.
    """
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",  # required by the client, but unused: nothing is subscribed to or committed
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "isolation.level": "read_committed",
        # If retention deletes unread records, the read must fail; its user starts again and reports it.
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
        "check.crcs": "true",
        "queued.max.messages.kbytes": str(queue_kb),
        "fetch.message.max.bytes": str(queue_kb * 1024 // 8),
        # By default, a full queue is checked again only after a second.
        "fetch.queue.backoff.ms": "10",
        "reconnect.backoff.ms": "50",
        "reconnect.backoff.max.ms": "1000",
        # read() raises read errors. While the broker is unavailable, librdkafka would print this to stderr dozens of
        # times a second; the other clients of this process log it once a minute.
        "log_level": "2",
    } | librdkafka_security()
    if SPEEDUPS is None:
        return MessageReader(Consumer(settings, logger=logger), topic, partition, offset)
    return ArrivalReader(settings, topic, partition, offset)


@asynccontextmanager
async def open_reader(bootstrap: str, topic: str, partition: int, offset: int) -> AsyncIterator[PartitionReader]:
    """As :func:`start_reader`; closes the reader on exit."""
    reader = start_reader(bootstrap, topic, partition, offset)
    try:
        yield reader
    finally:
        await asyncio.to_thread(reader.close)
