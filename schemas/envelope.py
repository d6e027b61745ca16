"""The envelope: CloudEvents 1.0 attributes as Kafka headers (binary binding), so that routing needs no parsing.

ce_specversion 1.0                               ce_subject  019…-trajectory-id
ce_id          019…-uuid7                        ce_sequence 3
ce_type        headrace.tool.called.v1           traceparent 00-4bf9…-00f0…-01
ce_source      /agents/checkout-helper           content-type application/json
ce_time        2026-11-21T11:24:24.512Z
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from headrace.schemas.bounds import MAX_TIME_MS, is_time

Headers = list[tuple[str, bytes]]

SPEC_VERSION = "ce_specversion"
ID = "ce_id"
TYPE = "ce_type"
SOURCE = "ce_source"
TIME = "ce_time"
SUBJECT = "ce_subject"
SEQUENCE = "ce_sequence"
TRACEPARENT = "traceparent"
CONTENT_TYPE = "content-type"


MAX_HEADER_BYTES = 4 * 512
"""Longest attribute, in bytes: what the longest id or key (``bounds.MAX_NAME`` characters) may take as UTF-8."""

_MAX_DIGITS = 18
"""Most digits of a sequence number: it fits 64 bits."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_PLAIN_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class EnvelopeError(ValueError):
    """The headers are not an envelope; the message names the header."""


class BadTimeError(EnvelopeError):
    """The time is well-formed but out of bounds: before 1970, or in or after the year 2200."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The attributes of one event."""

    id: str
    """UUIDv7 for a fact, derived id for a derived record."""
    type: str
    """Type with version."""
    source: str
    """Program that emitted the event."""
    time_ms: int
    """When it happened, by the sender's clock: Unix milliseconds in ``[0, bounds.MAX_TIME_MS)``."""
    subject: str
    """Trajectory id, or the id of whatever else the record is about."""
    sequence: int | None = None
    """Position in the trajectory, from 0; ``None`` on derived records."""
    traceparent: str | None = None
    """W3C trace context of the host's span."""


def to_headers(envelope: Envelope) -> Headers:
    """Return ``envelope`` as Kafka headers."""
    headers = [
        (SPEC_VERSION, b"1.0"),
        (ID, envelope.id.encode()),
        (TYPE, envelope.type.encode()),
        (SOURCE, envelope.source.encode()),
        (TIME, _to_rfc3339(envelope.time_ms).encode()),
        (SUBJECT, envelope.subject.encode()),
        (CONTENT_TYPE, b"application/json"),
    ]
    if envelope.sequence is not None:
        headers.append((SEQUENCE, b"%d" % envelope.sequence))
    if envelope.traceparent is not None:
        headers.append((TRACEPARENT, envelope.traceparent.encode()))
    return headers


def from_headers(headers: Iterable[tuple[str, bytes | None]]) -> Envelope:
    """Read the envelope from ``headers``.

    Raises :class:`EnvelopeError`, which names the header that is missing, malformed or too long, and
    :class:`BadTimeError` if the time is out of bounds.
    """
    found = dict(headers)
    sequence = found.get(SEQUENCE)
    try:
        return Envelope(
            id=_text(found, ID),
            type=_text(found, TYPE),
            source=_text(found, SOURCE),
            time_ms=_from_rfc3339(_text(found, TIME)),
            subject=_text(found, SUBJECT),
            sequence=None if sequence is None else _natural(sequence),
            traceparent=_text(found, TRACEPARENT) if TRACEPARENT in found else None,
        )
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"a header is not UTF-8: {error}") from error


@lru_cache(maxsize=4096)
def plain_time(value: bytes) -> int | None:
    """Return the Unix milliseconds of a ``ce_time`` as :func:`to_headers` writes it; ``None`` for any other form,
    valid or not.

    The cache pays because, among thousands of events a second, many share a millisecond.
    """
    if not _PLAIN_TIME.fullmatch(value):
        return None
    try:
        return _from_rfc3339(value.decode())
    except EnvelopeError:
        return None


def _text(found: dict[str, bytes | None], name: str) -> str:
    value = found.get(name)
    if value is None:
        raise EnvelopeError(f"header {name} is missing")
    if len(value) > MAX_HEADER_BYTES:
        raise EnvelopeError(f"header {name} has {len(value):,} bytes: at most {MAX_HEADER_BYTES:,} are allowed")
    return value.decode()


def _natural(value: bytes) -> int:
    # isdigit() of bytes is ASCII only; int() alone would accept b" 7", b"-7" and b"1_0".
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise EnvelopeError(f"header {SEQUENCE} is {value[:40]!r}: expected at most {_MAX_DIGITS} decimal digits")
    return int(value)


def _to_rfc3339(unix_ms: int) -> str:
    return f"{_second(unix_ms // 1000)}.{unix_ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(unix_s: int) -> str:
    """Cached: a second has thousands of events."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S}"


def _from_rfc3339(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise EnvelopeError(f"header {TIME} is {text[:40]!r}, not an RFC 3339 time") from error
    if moment.tzinfo is None:
        raise EnvelopeError(f"header {TIME} is {text[:40]!r}: the time zone is missing")
    whole = (moment.replace(microsecond=0) - _EPOCH) // _SECOND
    unix_ms = whole * 1000 + moment.microsecond // 1000
    if not is_time(unix_ms):
        bound = _second(MAX_TIME_MS // 1000)[:4]
        raise BadTimeError(f"header {TIME} is {text[:40]!r}: expected a time from 1970 on and before {bound}")
    return unix_ms
