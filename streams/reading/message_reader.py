"""Partition reader without the extension module: converts confluent-kafka's messages one by one."""

from operator import methodcaller
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.streams.raw import LogRecord

BATCH = 200
"""Default of records per read: few enough to stay in the processor's cache until they are folded."""

# With a plain message.headers(), CPython's specialised call does not check whether the client failed and continues with
# a broken list. Called through methodcaller, the failure raises.
_headers_of = methodcaller("headers")


class FetchedRecord(msgspec.Struct, gc=False):
    """A :class:`LogRecord` read by librdkafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class MessageReader:
    """Reads one partition from an offset on, with its own consumer."""

    def __init__(self, consumer: Consumer, topic: str, partition: int, offset: int) -> None:
        self.position = offset
        """Next offset to read. At the log end it is also past transaction markers, which use offsets without a
        record."""
        self._consumer = consumer
        self._place = TopicPartition(topic, partition, offset)
        self._consumer.assign([self._place])
        self._error: KafkaError | None = None

    def read(self, most: int = BATCH) -> list[LogRecord]:
        """Returns the next records, at most ``most``, or none; does not wait. Raises ``KafkaException`` if the
        partition cannot be read, after all records before the error were returned.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise KafkaException(error)
        topic, partition = self._place.topic, self._place.partition
        records: list[LogRecord] = []
        messages: list[Any] = self._consumer.consume(most, 0)
        for message in messages:
            error = message.error()
            if error is None:
                _, timestamp = message.timestamp()
                try:
                    headers = _headers_of(message) or []
                except (SystemError, UnicodeDecodeError):  # the client fails on a header name that is not UTF-8
                    headers = []
                record = FetchedRecord(
                    topic, partition, message.offset(), timestamp, message.key(), message.value(), headers
                )
                records.append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.position = message.offset()
            else:
                self._error = error
                break
        if records:
            self.position = max(self.position, records[-1].offset + 1)
        return records if records or self._error is None else self.read(most)

    @property
    def end(self) -> int | None:
        """Log end offset as of the last fetch; ``None`` before it."""
        _, end = self._consumer.get_watermark_offsets(self._place, cached=True)
        return end if end >= 0 else None

    def close(self) -> None:
        """Close the connection; may block."""
        self._consumer.close()
