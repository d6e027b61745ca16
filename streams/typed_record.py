"""Decodes a record as the type that its topic expects."""

from typing import TypeVar

from headrace.schemas.bounds import is_time
from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.raw import LogRecord

R = TypeVar("R", bound=Record)


def check_time(record: LogRecord) -> None:
    """Raise :class:`UnreadableRecord` if Kafka's timestamp of ``record``, which its producer set, is out of bounds."""
    if not is_time(record.timestamp):
        message = f"timestamp {record.timestamp}: Kafka's times are taken from 1970 until 2199"
        raise UnreadableRecord(DeadLetterError.BAD_TIME, message)


def typed(record: LogRecord, model: type[R]) -> tuple[Envelope, R]:
    """Returns envelope and payload of ``record``. Raises :class:`UnreadableRecord` if it is not a ``model``."""
    envelope, payload = decode(record.headers, record.value)
    if not isinstance(payload, model):
        raise UnreadableRecord(DeadLetterError.INVALID, f"{envelope.type} does not belong in {record.topic}")
    return envelope, payload
