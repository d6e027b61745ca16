"""Committed records of one partition, in order, through librdkafka: it fetches and unpacks on threads of its own.

With the extension module they come as arrivals, headers looked at, without an object in between; else as
confluent-kafka's messages. Who may read which partition is not decided here: a reader belongs to no group.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, cimpl

from headrace.streams.assembly.message_reader import MessageReader
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord

logger = logging.getLogger(__name__)

_BATCH = 200
"""Records asked for at a time."""

_QUEUE_KB = 8 * 1024
"""Fetched and not yet read."""


class PartitionReader(Protocol):
    """Reads one partition from an offset on; made by :func:`open_reader`."""

    @property
    def position(self) -> int:
        """Next offset to read. At the end of the log also past transaction markers, which are offsets without a
        record."""

    @property
    def end(self) -> int | None:
        """The log's end as of the last fetch; ``None`` before it."""

    def read(self) -> Sequence[LogRecord]:
        """The next records, or none; does not wait. Raises ``KafkaException`` where the partition cannot be read, once
        everything before that was given.
        """

    def close(self) -> None:
        """Let go of the connection; may wait for it."""


class ArrivalReader:
    """A :class:`PartitionReader` whose records are arrivals; needs the extension module."""

    def __init__(self, settings: Mapping[str, str], topic: str, partition: int, offset: int) -> None:
        # What confluent-kafka is linked with, whether it brought it along or found it on the system.
        self._log = SPEEDUPS.PartitionLog(cimpl.__file__, dict(settings), topic, partition, offset)
        self.close = self._log.close
        self._error = 0

    @property
    def position(self) -> int:
        return self._log.position

    @property
    def end(self) -> int | None:
        return self._log.end

    def read(self) -> Sequence[LogRecord]:
        if not self._error:
            arrivals, self._error = self._log.read(_BATCH)
            if arrivals or not self._error:
                return arrivals
        error, self._error = self._error, 0
        raise KafkaException(KafkaError(error))


@asynccontextmanager
async def open_reader(bootstrap: str, topic: str, partition: int, offset: int) -> AsyncIterator[PartitionReader]:
    """A reader of the committed records of ``topic[partition]`` from ``offset`` on, closed at the end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",  # must be there, and is not used: nothing is subscribed to or committed
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "isolation.level": "read_committed",
        # What retention takes while it is read must be said; the restart does. See PartitionRunner.
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
        "check.crcs": "true",
        "queued.max.messages.kbytes": str(_QUEUE_KB),
        # With a full queue it would look again after a second, by default.
        "fetch.queue.backoff.ms": "2",
        "reconnect.backoff.ms": "50",
        "reconnect.backoff.max.ms": "1000",
        # Errors of reading are raised by read(). That the broker is away it would say dozens of times a second, past
        # the log; this process's other clients say it once a minute.
        "log_level": "2",
    }
    reader: PartitionReader
    if SPEEDUPS is None:
        reader = MessageReader(Consumer(settings, logger=logger), topic, partition, offset)
    else:
        reader = ArrivalReader(settings, topic, partition, offset)
    try:
        yield reader
    finally:
        await asyncio.to_thread(reader.close)
