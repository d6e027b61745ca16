"""A record as one line: for people in columns, for programs as JSON.

2026-11-21 11:24:26.012  2:7104  tool.called  01a1fdd9…111111 #3  search_corpus {"query": "where does ada work"}
"""

from array import array
from base64 import b64encode
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from pydantic import BaseModel

from headrace.deploy.tail.record import Seen, short_type
from headrace.deploy.tail.sentence import sentence
from headrace.schemas import envelope as names
from headrace.schemas.safe_text import printable

ELLIPSIS = "…"

MAX_ID_CHARACTERS = 24
"""Longest id that is shown whole where ids are shortened."""

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
    """When it happened, UTC; when it was written, where the headers do not say."""
    place: str
    """``partition:offset``."""
    type: str
    """Short name of the type."""
    subject: str
    """What it is about, and its number in the trajectory."""
    text: str
    """The record in a sentence, or why it cannot be read."""
    unreadable: bool
    """Whether ``text`` is an error."""


def shortened(name: str) -> str:
    """``01a1fdd9…111111``: the beginning and the end of a long id, which ``--trajectory`` takes as it is shown."""
    return name if len(name) <= MAX_ID_CHARACTERS else f"{name[:8]}{ELLIPSIS}{name[-6:]}"


def is_id(name: str, wanted: str) -> bool:
    """Whether ``name`` is ``wanted``, which may be shortened."""
    head, ellipsis, tail = wanted.partition(ELLIPSIS)
    return name.startswith(head) and name.endswith(tail) if ellipsis else name == wanted


def line(seen: Seen, *, full: bool = False) -> Line:
    """``seen`` in columns; ``full`` leaves ids as they are."""
    short = str if full else shortened
    sequence = seen.envelope.sequence if seen.envelope else None
    subject = short(seen.subject) + (f" #{sequence}" if sequence is not None else "")
    if seen.payload is not None:
        text = sentence(seen.payload, short)
    else:
        text = f"unreadable, {seen.error.error}: {printable(str(seen.error))}" if seen.error else "unreadable"
    return Line(
        time=utc(seen.envelope.time_ms if seen.envelope else seen.raw.timestamp),
        place=f"{seen.raw.partition}:{seen.raw.offset}",
        type=printable(short_type(seen.type)) or "?",
        subject=printable(subject) or "?",
        text=printable(text),
        unreadable=seen.payload is None,
    )


def as_json(seen: Seen, *, arrays: bool = False) -> dict[str, Any]:
    """``seen`` for programs: place, envelope, payload as ``data``. ``arrays`` turns token arrays into numbers.

    What cannot be read has ``error``, ``message`` and its bytes as ``value_base64`` in the place of ``data``.
    """
    raw, envelope = seen.raw, seen.envelope
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
    if seen.payload is not None:
        shown["data"] = _plain(seen.payload) if arrays else seen.payload.model_dump(mode="json")
    elif seen.error is not None:
        value = None if raw.value is None else b64encode(raw.value).decode()
        shown |= {"error": str(seen.error.error), "message": str(seen.error), "value_base64": value}
    return shown


def utc(unix_ms: int) -> str:
    """``2026-11-21 11:24:24.512``; a time out of range stays a number."""
    try:
        moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d}"


def _plain(value: Any) -> Any:
    """A model as JSON takes it, token arrays as lists of numbers."""
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
