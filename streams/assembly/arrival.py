"""An event as it arrives and is held in memory: its raw bytes and its parsed headers. The payload is not decoded.

    sequence number 17 of s1   headrace.tool.called.v1   {"call_id": "c1", …}   9 headers packed into 297 bytes

A partition holds hundreds of thousands of these while trajectories are open. Header objects would take three times the
memory of the payload, so the headers stay packed until they are needed. With the extension module an arrival is one
block of memory allocated by the module; without it, a struct with the same fields.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from headrace.schemas.bounds import is_time
from headrace.schemas.envelope import (
    CONTENT_TYPE,
    ID,
    MAX_HEADER_BYTES,
    SEQUENCE,
    SOURCE,
    SPEC_VERSION,
    SUBJECT,
    TIME,
    TRACEPARENT,
    TYPE,
    plain_time,
)
from headrace.schemas.events import ClockTicked, TrajectoryEnded
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import EVENTS
from headrace.schemas.upcast import UPCASTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord

if TYPE_CHECKING:
    from headrace.streams.native import speedups

TICK = ClockTicked.TYPE.encode()
END = TrajectoryEnded.TYPE.encode()
MAX_ID_BYTES = 512
"""Longest trajectory id."""

KINDS = frozenset(name.encode() for name in ({model.TYPE for model in EVENTS.models} | set(UPCASTERS)))
"""Every ``ce_type`` that can be decoded."""

_ATTRIBUTES = (ID, TYPE, SOURCE, SUBJECT, TRACEPARENT)
"""Headers whose length is checked; the lengths of a sequence number and a time follow from their formats."""
_KINDS = {kind: kind for kind in KINDS}
"""Interns the types, so that all records of one type share one object."""

_HEADER_BYTES = 8
"""Size of a packed header in addition to its name and value: their lengths."""

_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder(list[tuple[str | int, bytes | None]]).decode

_USUAL = (SPEC_VERSION, ID, TYPE, SOURCE, TIME, SUBJECT, SEQUENCE, CONTENT_TYPE, TRACEPARENT)
"""Header names of every event; packed as their indices in this tuple."""
_PLACES: dict[str, str | int] = {name: place for place, name in enumerate(_USUAL)}

_NUMBERS: dict[bytes, int] = {b"%d" % number: number for number in range(1024)}
"""Cache of parsed sequence numbers; nearly all are below 1024."""


class PlainArrival(msgspec.Struct, gc=False):
    """A record of ``events``: a :class:`LogRecord` with its parsed headers."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    packed_headers: bytes
    """MessagePack."""
    kind: bytes | None
    """``ce_type``."""
    subject: bytes | None
    """``ce_subject``: the trajectory id."""
    id: bytes | None
    """``ce_id``."""
    sequence: int | None
    """``ce_sequence``; ``None`` if it is missing, not a non-negative integer, or longer than 18 digits."""
    size: int
    """Memory of key, payload and headers in bytes: names and repeated headers included, plus eight per header."""
    time_ms: int | None
    """``ce_time``, Unix milliseconds, if the envelope is complete and in headrace's own plain form; ``None`` means that
    the headers must be decoded to know it."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The original headers, in order."""
        return [
            (name if isinstance(name, str) else _USUAL[name], value) for name, value in _UNPACK(self.packed_headers)
        ]

    @property
    def names_trajectory(self) -> bool:
        """Whether the subject is a valid trajectory id."""
        if not self.subject or len(self.subject) > MAX_ID_BYTES:
            return False
        try:
            self.subject.decode()
        except UnicodeDecodeError:
            return False
        return True


if TYPE_CHECKING:
    Arrival: TypeAlias = PlainArrival | speedups.Arrival
else:
    Arrival = PlainArrival if SPEEDUPS is None else PlainArrival | SPEEDUPS.Arrival
"""A record of ``events`` with its parsed headers."""

_ARRIVALS = (PlainArrival,) if SPEEDUPS is None else (SPEEDUPS.Arrival, PlainArrival)


def arrival_of(record: LogRecord) -> Arrival:
    """Returns ``record`` with its headers parsed. Of several headers with one name the last counts."""
    if isinstance(record, _ARRIVALS):
        return record
    if SPEEDUPS is None:
        return plain_arrival_of(record)
    place = (record.topic, record.partition, record.offset, record.timestamp)
    return SPEEDUPS.Arrival(*place, record.key, record.value, record.headers)


def plain_arrival_of(record: LogRecord) -> PlainArrival:
    """As :func:`arrival_of`, but without the extension module."""
    pairs = record.headers
    headers = dict(pairs)
    key, value = record.key, record.value
    time_ms = None
    contents = [content for _, content in pairs]
    size = sum(len(content) for content in (*contents, key, value) if content)
    size += sum(_HEADER_BYTES + (len(name) if name.isascii() else len(name.encode())) for name, _ in pairs)
    time = headers.get(TIME)
    whole = time is not None and ID in headers and SOURCE in headers
    if whole and all(content is not None and content.isascii() for content in contents):
        short = all(len(content or b"") <= MAX_HEADER_BYTES for name, content in pairs if name in _ATTRIBUTES)
        time_ms = plain_time(time) if short else None
    kind, subject = headers.get(TYPE), headers.get(SUBJECT)
    number = headers.get(SEQUENCE)
    sequence = _NUMBERS.get(number) if number is not None else None
    return PlainArrival(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        subject if key == subject else key,  # one object and not two
        value,
        _PACK([(_PLACES.get(name, name), content) for name, content in pairs]),
        _KINDS.get(kind, kind) if kind is not None else None,
        subject,
        headers.get(ID),
        _natural(number) if sequence is None else sequence,
        size,
        time_ms,
    )


def _natural(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= 18 else None


def problem_with(arrival: Arrival, limits: FoldLimits) -> UnreadableRecord | None:
    """Returns why an event cannot be used, as far as that shows without decoding its payload; else ``None``."""
    kind, sequence = arrival.kind, arrival.sequence
    if kind is None or sequence is None:
        message = f"header {TYPE if kind is None else SEQUENCE} is missing or malformed"
        return UnreadableRecord(DeadLetterError.BAD_HEADERS, message)
    if sequence >= limits.max_trajectory_events:
        message = f"sequence number {sequence}: max_trajectory_events is {limits.max_trajectory_events}"
        return UnreadableRecord(DeadLetterError.OVERSIZE, message)
    if kind not in KINDS:
        return UnreadableRecord(DeadLetterError.UNKNOWN_TYPE, f"no model for type {kind[:200]!r} in {EVENTS.name}")
    if not is_time(arrival.timestamp):
        message = f"timestamp {arrival.timestamp}: Kafka's times are taken from 1970 until 2199"
        return UnreadableRecord(DeadLetterError.BAD_TIME, message)
    if arrival.value is None:
        return UnreadableRecord(DeadLetterError.NULL_VALUE, f"{kind.decode()}: the value is null")
    if arrival.size > limits.max_event_bytes:
        message = f"{arrival.size} bytes of key, payload and headers: max_event_bytes is {limits.max_event_bytes}"
        return UnreadableRecord(DeadLetterError.OVERSIZE, message)
    return None
