"""A record of a topic as the one type that belongs there."""

from typing import TypeVar

from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.raw import LogRecord

R = TypeVar("R", bound=Record)


def typed(record: LogRecord, model: type[R]) -> tuple[Envelope, R]:
    """Envelope and payload of ``record``; raises :class:`UnreadableRecord` where it is none or of another type."""
    envelope, payload = decode(record.headers, record.value)
    if not isinstance(payload, model):
        raise UnreadableRecord(DeadLetterError.INVALID, f"{envelope.type} does not belong in {record.topic}")
    return envelope, payload
