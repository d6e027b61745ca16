"""Formats a record as one line: in columns for people, as JSON for programs.

2026-11-21 11:24:26.012  2:7104  tool.called  01a1fdd9…111111 #3  search_corpus {"query": "where does ada work"}
"""

from array import array
from base64 import b64encode
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from pydantic import BaseModel

from headrace.deploy.tail.record import DecodedRecord, short_type
from headrace.deploy.tail.sentence import sentence
from headrace.deploy.tail.shortened_ids import shortened
from headrace.schemas import envelope as names
from headrace.schemas.safe_text import printable

_ATTRIBUTES = frozenset(
    {
        names.SPEC_VERSION,
        names.ID,
        names.TYPE,
        names.SOURCE,
        names.TIME,
        names.SUBJECT,
        names.SEQUENCE,
        names.TRACEPARENT,
        names.CONTENT_TYPE,
    }
)


class Line(NamedTuple):
    """A record in columns."""

    time: str
    """The event's time in UTC; the Kafka timestamp if the headers have no time."""
    position: str
    """``partition:offset``."""
    type: str
    """Short name of the type."""
    subject: str
    """The record's subject, and its sequence number in the trajectory."""
    text: str
    """A summary of the record, or the reason why it cannot be read."""
    unreadable: bool
    """Whether ``text`` is an error."""


def line(record: DecodedRecord, *, full: bool = False) -> Line:
    """Returns ``record`` in columns; ``full`` does not shorten ids."""
    format_id = str if full else shortened
    sequence = record.envelope.sequence if record.envelope else None
    subject = format_id(record.subject) + (f" #{sequence}" if sequence is not None else "")
    if record.payload is not None:
        text = sentence(record.payload, format_id)
    else:
        text = f"unreadable, {record.error.error}: {printable(str(record.error))}" if record.error else "unreadable"
    return Line(
        time=utc(record.envelope.time_ms if record.envelope else record.raw.timestamp),
        position=f"{record.raw.partition}:{record.raw.offset}",
        type=printable(short_type(record.type)) or "?",
        subject=printable(subject) or "?",
        text=printable(text),
        unreadable=record.payload is None,
    )


def as_json(record: DecodedRecord, *, arrays: bool = False) -> dict[str, Any]:
    """Returns ``record`` for programs: position, envelope, payload as ``data``; ``arrays`` decodes token arrays.

    A record that cannot be read has ``error``, ``message`` and its bytes as ``value_base64`` instead of ``data``.
    """
    raw, envelope = record.raw, record.envelope
    shown: dict[str, Any] = {
        "topic": raw.topic,
        "partition": raw.partition,
        "offset": raw.offset,
        "timestamp_ms": raw.timestamp,
        "key": None if raw.key is None else raw.key.decode("utf-8", "replace"),
    }
    if envelope is not None:
        shown |= {
            "id": envelope.id,
            "type": envelope.type,
            "source": envelope.source,
            "time": utc(envelope.time_ms).replace(" ", "T") + "Z",
            "subject": envelope.subject,
            "sequence": envelope.sequence,
            "traceparent": envelope.traceparent,
        }
    others = {name: _text(value) for name, value in raw.headers if envelope is None or name not in _ATTRIBUTES}
    if others:
        shown["headers"] = others
    if record.payload is not None:
        shown["data"] = _plain(record.payload) if arrays else record.payload.model_dump(mode="json")
    elif record.error is not None:
        value = None if raw.value is None else b64encode(raw.value).decode()
        shown |= {"error": str(record.error.error), "message": str(record.error), "value_base64": value}
    return shown


def utc(unix_ms: int) -> str:
    """Returns the time in the form ``2026-11-21 11:24:24.512``; a time that is out of range stays a number."""
    try:
        moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d}"


def _plain(value: Any) -> Any:
    """Returns a model as JSON data, with token arrays as lists of numbers."""
    if isinstance(value, BaseModel):
        return {name: _plain(content) for name, content in value}
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(content) for name, content in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
