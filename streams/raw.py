"""A record as it stands in a topic, undecoded: what folds and dead letters work on, whichever client read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class LogRecord(Protocol):
    """What of a record is needed; aiokafka's ``ConsumerRecord`` has it."""

    @property
    def topic(self) -> str:
        """Topic."""

    @property
    def partition(self) -> int:
        """Partition."""

    @property
    def offset(self) -> int:
        """Offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Kafka's timestamp of the record, Unix milliseconds: the log's clock."""

    @property
    def key(self) -> bytes | None:
        """Key."""

    @property
    def value(self) -> bytes | None:
        """Payload."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers in order."""


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
