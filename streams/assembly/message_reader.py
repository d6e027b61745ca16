"""A partition's reader without the extension module: confluent-kafka's messages, taken apart one by one."""

from operator import methodcaller
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.streams.raw import LogRecord

_BATCH = 200
"""Records asked for at a time: few enough to stay in the processor's cache until they are folded."""

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


class MessageReader:
    """Reads one partition from an offset on, with a consumer of its own."""

    def __init__(self, consumer: Consumer, topic: str, partition: int, offset: int) -> None:
        self.position = offset
        """Next offset to read. At the end of the log also past transaction markers, which are offsets without a
        record."""
        self._consumer = consumer
        self._place = TopicPartition(topic, partition, offset)
        self._consumer.assign([self._place])
        self._error: KafkaError | None = None

    def read(self) -> list[LogRecord]:
        """The next records, or none; does not wait. Raises ``KafkaException`` where the partition cannot be read, once
        everything before that was given.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise KafkaException(error)
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
                self._error = error
                break
        if records:
            self.position = max(self.position, records[-1].offset + 1)
        return records if records or self._error is None else self.read()

    @property
    def end(self) -> int | None:
        """The log's end as of the last fetch; ``None`` before it."""
        _, end = self._consumer.get_watermark_offsets(self._place, cached=True)
        return end if end >= 0 else None

    def close(self) -> None:
        """Let go of the connection; may wait for it."""
        self._consumer.close()
