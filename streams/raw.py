"""A record as it stands in a topic, undecoded: what folds and dead letters work on, whichever client read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.schemas.kafka.bookmarks import BookmarkedRecord
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message


class LogRecord(BookmarkedRecord, Protocol):
    """What of a record is needed; aiokafka's ``ConsumerRecord`` has it. Its timestamp is the log's clock."""

    @property
    def topic(self) -> str:
        """Topic."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that never was in Kafka: made by :func:`headrace.streams.drive.drive` and by tests."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Outgoing(NamedTuple):
    """A record to be sent."""

    topic: Topic
    """Where to."""
    message: Message
    """Key, payload and headers."""
    timestamp_ms: int
    """Kafka timestamp: log time, so that time downstream is the time of the events and not of their processing."""
