"""The bytes of a spool's segment file: a header that names the cluster, then one frame per Kafka record.

    header   b"HRSPOOL1"  sha256 of the cluster's settings (32 bytes)  CRC-32 of both
    frame    length of the payload (u32)  CRC-32 of length and payload (u32)  payload
    payload  flags (u8)  timestamp (i64)  topic  number of headers (u16)  headers  key  value

Integers are little-endian; a text or a value is preceded by its length (u32). A payload holds everything that is needed
to send the record again under the same event ID.

A process that is killed leaves a frame that is not complete, or zeros that were never written: the file ends at the
last whole frame. A frame that is damaged within the file ends it, too, because nothing after it can be trusted to be in
order. Both are described by :class:`Loss`. Pure functions: no file is opened here.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

MAGIC: Final = b"HRSPOOL1"
"""First bytes of a segment file; the digit is the version of the format."""

CLUSTER_BYTES: Final = 32
"""Size of the fingerprint of a cluster's settings."""

HEADER_BYTES: Final = len(MAGIC) + CLUSTER_BYTES + 4
"""Size of a segment's header."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""Largest payload of a frame: twice the largest record of any topic. A greater length is damage."""

_PREFIX = struct.Struct("<II")
_START = struct.Struct("<Bq")
_COUNT = struct.Struct("<H")
_SIZE = struct.Struct("<I")
_HAS_TIMESTAMP, _HAS_KEY, _HAS_VALUE = 1, 2, 4

MIN_PAYLOAD_BYTES: Final = _START.size + _SIZE.size + _COUNT.size + 2 * _SIZE.size
"""Size of the payload of an empty record. A smaller length is damage."""


class RecordTooLarge(ValueError):
    """The record cannot be written as a frame; the message contains its size and the limit."""


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """A Kafka record as it was, or will be, sent."""

    topic: str
    """Name of the topic."""
    key: bytes | None
    """The record's key."""
    value: bytes | None
    """The record's value."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """The record's headers, in order; they include the event's ID."""
    timestamp_ms: int | None = None
    """The record's timestamp, Unix milliseconds; ``None`` if the broker or the client sets it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The part of a segment file that cannot be read."""

    offset: int
    """Where it begins, in bytes from the start of the file."""
    size: int
    """Its size in bytes, up to the end of the file."""
    records: int
    """Frames in it, counted along their lengths: exact unless a length is damaged, and at least 1 after a header."""
    is_torn: bool
    """Whether it is the end of a file that was being written: an incomplete frame, or zeros."""


def cluster_fingerprint(*settings: str) -> bytes:
    """Return the fingerprint (32 bytes) of ``settings``, such as addresses and a prefix of topics.

    Different settings give different fingerprints: each is preceded by its length.
    """
    digest = hashlib.sha256()
    for text in settings:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(_SIZE.pack(len(encoded)) + encoded)
    return digest.digest()


def header_of(cluster: bytes) -> bytes:
    """Return the header of a segment for ``cluster``, a fingerprint; raise ``ValueError`` if it is not 32 bytes."""
    if len(cluster) != CLUSTER_BYTES:
        raise ValueError(f"the fingerprint of a cluster has {len(cluster)} bytes: expected {CLUSTER_BYTES}")
    return MAGIC + cluster + _SIZE.pack(crc32(MAGIC + cluster))


def cluster_of(data: bytes) -> bytes | None:
    """Return the fingerprint in the header at the start of ``data``; ``None`` if there is no valid header."""
    header = data[:HEADER_BYTES]
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return None
    if _SIZE.unpack_from(header, HEADER_BYTES - 4)[0] != crc32(header[:-4]):
        return None
    return header[len(MAGIC) : -4]


def frame_of(record: SpooledRecord) -> bytes:
    """Return ``record`` as a frame; raise :class:`RecordTooLarge` beyond ``MAX_PAYLOAD_BYTES`` or 65,535 headers."""
    flags = (
        (_HAS_TIMESTAMP if record.timestamp_ms is not None else 0)
        | (_HAS_KEY if record.key is not None else 0)
        | (_HAS_VALUE if record.value is not None else 0)
    )
    if len(record.headers) > 0xFFFF:
        raise RecordTooLarge(f"a record has {len(record.headers):,} headers: at most 65,535 can be spooled")
    parts = [_START.pack(flags, record.timestamp_ms or 0), *_sized(record.topic.encode())]
    parts.append(_COUNT.pack(len(record.headers)))
    for name, value in record.headers:
        parts += (*_sized(name.encode()), *_sized(value))
    parts += (*_sized(record.key or b""), *_sized(record.value or b""))
    payload = b"".join(parts)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise RecordTooLarge(f"a record takes {len(payload):,} bytes: at most {MAX_PAYLOAD_BYTES:,} can be spooled")
    return _prefix(payload) + payload


class FrameReader:
    """Reads the frames of one segment file in order.

    ``data``: the whole file, header included. :meth:`next` returns one record after the other and then ``None``;
    afterwards ``loss`` describes what could not be read. Linear in the size of ``data``; nothing raises.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = HEADER_BYTES
        self.loss: Loss | None = None
        """What cannot be read; ``None`` while none was met."""
        if cluster_of(data) is None:
            self._lose(0)

    def next(self) -> SpooledRecord | None:
        """Return the next record, or ``None`` at the end of the file or of its readable part."""
        data, at = self._data, self._at
        if self.loss is not None or at == len(data):
            return None
        body = at + _PREFIX.size
        if body > len(data):
            self._lose(at)
            return None
        length, checksum = _PREFIX.unpack_from(data, at)
        payload = data[body : body + length]
        if length > MAX_PAYLOAD_BYTES or len(payload) < length or checksum != _checksum(payload):
            self._lose(at)
            return None
        record = _record(payload)
        if record is None:  # written by another version: the checksum is right, the content is not
            self._lose(at)
            return None
        self._at = body + length
        return record

    def _lose(self, offset: int) -> None:
        data, size = self._data, len(self._data) - offset
        if len(data) < HEADER_BYTES:
            self.loss = Loss(offset, size, 0, is_torn=True)
        elif data.count(0, offset) == size:
            self.loss = Loss(offset, size, 1, is_torn=True)
        else:
            whole, end = _whole_frames(data, max(offset, HEADER_BYTES))
            self.loss = Loss(offset, size, max(1, whole + (end < len(data))), is_torn=not whole)


def _whole_frames(data: bytes, at: int) -> tuple[int, int]:
    """Return how many frames from ``at`` on are complete by their lengths, and where the last of them ends."""
    frames = 0
    while at + _PREFIX.size <= len(data):
        length = _PREFIX.unpack_from(data, at)[0]
        end = at + _PREFIX.size + length
        if end > len(data) or length < MIN_PAYLOAD_BYTES:
            break
        frames, at = frames + 1, end
    return frames, at


def _prefix(payload: bytes) -> bytes:
    return _PREFIX.pack(len(payload), _checksum(payload))


def _checksum(payload: bytes) -> int:
    return crc32(payload, crc32(_SIZE.pack(len(payload))))


def _sized(data: bytes) -> tuple[bytes, bytes]:
    return _SIZE.pack(len(data)), data


def _record(payload: bytes) -> SpooledRecord | None:
    """Decode a payload; return ``None`` if it is not the form that :func:`frame_of` writes."""
    try:
        flags, timestamp_ms = _START.unpack_from(payload)
        topic, at = _take(payload, _START.size)
        (count,) = _COUNT.unpack_from(payload, at)
        at += _COUNT.size
        headers = []
        for _ in range(count):
            name, at = _take(payload, at)
            value, at = _take(payload, at)
            headers.append((name.decode(), value))
        key, at = _take(payload, at)
        value, at = _take(payload, at)
        record = SpooledRecord(
            topic.decode(),
            key if flags & _HAS_KEY else None,
            value if flags & _HAS_VALUE else None,
            tuple(headers),
            timestamp_ms if flags & _HAS_TIMESTAMP else None,
        )
    except (struct.error, UnicodeDecodeError):
        return None
    return record if at == len(payload) else None


def _take(payload: bytes, at: int) -> tuple[bytes, int]:
    """Return the sized bytes at ``at`` and the place after them; raise ``struct.error`` if they are not complete."""
    (size,) = _SIZE.unpack_from(payload, at)
    end = at + _SIZE.size + size
    if end > len(payload):
        raise struct.error("a length exceeds its payload")
    return payload[at + _SIZE.size : end], end
