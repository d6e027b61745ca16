"""Undecoded records, independent of the client that read them: the input of folds and dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.schemas.kafka.bookmarks import BookmarkedRecord
from headrace.schemas.kafka.sending import OutgoingRecord
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message


class LogRecord(BookmarkedRecord, Protocol):
    """The fields of a record that folds need; aiokafka's ``ConsumerRecord`` has them. Timestamps give stream time."""

    @property
    def topic(self) -> str:
        """Topic."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as a plain value, for records that are not read from Kafka as such."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Outgoing(NamedTuple):
    """A record to send."""

    topic: Topic
    """Its topic."""
    message: Message
    """Key, payload and headers."""
    timestamp_ms: int
    """Kafka timestamp: stream time, so that downstream time is event time and not processing time."""


def to_send(outgoing: Outgoing, partition: int | None = None) -> OutgoingRecord:
    """``outgoing`` as the producer takes it, to ``partition`` or the partition of its key."""
    topic, message, time_ms = outgoing
    return OutgoingRecord(topic.name, message.key, message.value, message.headers, time_ms, partition)
