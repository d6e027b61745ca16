"""Builds dead letters: the position of a record that could not be used, the error, and every original byte.

events[2]@7104  bad_json  "headrace.tool.called.v1: Invalid JSON: EOF while parsing …"  value eyJjYWxsX2lk…
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable

from headrace.schemas.bounds import is_time
from headrace.schemas.ids import derived_id
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.topics import DEAD_LETTERS
from headrace.schemas.wire import Message, UnreadableRecord, record_message
from headrace.streams.raw import LogRecord

SOURCE = "/streams/dead-letters"

MAX_MESSAGE_CHARACTERS = 1000
"""Longest message: an error may quote its input."""

_ENVELOPE_BYTES = 16 * 1024
"""Space for everything in a dead letter except the original bytes."""

_HEADER_BYTES = len('["",null],')
"""Size of a header in JSON without its name and its value."""


def dead_letter(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int,
    error: DeadLetterError,
    message: str,
    trajectory_id: str | None = None,
) -> DeadLetter:
    """Returns the dead letter of one record.

    If it would not fit into a record of ``dead-letters``, the largest of value, headers and key is left out, and the
    message names the record that still holds it. The size limit of the source topic gives no bound: it applies to
    compressed batches, and 60 MB of zeros compress to a few kilobytes.
    """
    headers = list(headers)
    message = message[:MAX_MESSAGE_CHARACTERS]
    sizes = {
        "value": _encoded_bytes(value),
        "headers": sum(_HEADER_BYTES + _json_bytes(name) + _encoded_bytes(content) for name, content in headers),
        "key": _encoded_bytes(key),
    }
    left_out = []
    while sum(sizes.values()) > DEAD_LETTERS.max_bytes - _ENVELOPE_BYTES:
        name = max(sizes, key=lambda name: sizes[name])
        del sizes[name]
        left_out.append(f"value of {len(value or b'')} bytes" if name == "value" else name)
    if left_out:
        message = f"{message} (too large to copy, only in {topic}[{partition}]@{offset}: {', '.join(left_out)})"
    encoded_key = _encode(key) if "key" in sizes else None
    encoded_value = _encode(value) if "value" in sizes else None
    encoded_headers = [(name, _encode(content)) for name, content in headers] if "headers" in sizes else []
    return DeadLetter(
        topic=topic,
        partition=partition,
        offset=offset,
        error=error,
        message=message,
        key=encoded_key,
        value=encoded_value,
        headers=encoded_headers,
        timestamp_ms=timestamp_ms,
        trajectory_id=trajectory_id,
    )


def time_of(record: LogRecord) -> int:
    """Returns the stream time of outputs caused by ``record``: its timestamp, or 0 if that is out of bounds."""
    return record.timestamp if is_time(record.timestamp) else 0


def to_message(dead: DeadLetter, source: str = SOURCE) -> Message:
    """Returns ``dead`` as a Kafka record. Its id is derived from the position of the original."""
    place = f"{dead.topic}:{dead.partition}"
    return record_message(
        dead,
        id=derived_id(DeadLetter.TYPE, dead.topic, dead.partition, dead.offset),
        key=place,
        source=source,
        time_ms=dead.timestamp_ms if is_time(dead.timestamp_ms) else 0,
        subject=dead.trajectory_id or f"{place}:{dead.offset}",
    )


def dead_letter_of(record: LogRecord, error: UnreadableRecord, trajectory_id: str | None = None) -> DeadLetter:
    """Returns the dead letter of ``record``, which could not be read because of ``error``."""
    return dead_letter(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        record.headers,
        record.timestamp,
        error.error,
        str(error),
        trajectory_id,
    )


def dead_letter_message(
    record: LogRecord, error: UnreadableRecord, trajectory_id: str | None = None, source: str = SOURCE
) -> Message:
    """Returns :func:`dead_letter_of` as a Kafka record."""
    return to_message(dead_letter_of(record, error, trajectory_id), source)


def original_bytes(dead: DeadLetter) -> bytes | None:
    """Returns the original value; ``None`` if it was null or left out."""
    return None if dead.value is None else b64decode(dead.value)


def _encoded_bytes(content: bytes | None) -> int:
    """Returns the length of ``content`` in base64."""
    return 0 if content is None else -(-len(content) // 3) * 4


def _json_bytes(name: str) -> int:
    """Returns the length of ``name`` in JSON without its quotes; a control character takes six bytes."""
    return len(json.dumps(name, ensure_ascii=False).encode()) - 2


def _encode(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode("ascii")
