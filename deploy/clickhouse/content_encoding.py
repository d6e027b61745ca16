"""Decompresses request bodies with a size limit, so that a small body cannot become a huge one in memory."""

import gzip
import io
import zlib
from collections.abc import Callable

import lz4.frame  # type: ignore[import-untyped]
import zstandard


class BodyTooLarge(ValueError):
    """A body is larger than ``limit`` bytes, before or after decompression."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class UnknownEncoding(ValueError):
    """The body's encoding is not supported, or the body is not in this encoding."""


def _gzip(body: bytes, most: int) -> bytes:
    # Clients send both gzip and zlib data as "deflate". A gzip body may consist of several members.
    if body.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as members:
            return members.read(most)
    stream = zlib.decompressobj()
    plain = stream.decompress(body, most)
    if len(plain) < most and (not stream.eof or stream.unused_data):
        raise EOFError("the data is truncated, or continues after its end")
    return plain


def _zstd(body: bytes, most: int) -> bytes:
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True).read(most)
    if len(plain) < most:
        _check_frames(body)  # The reader does not detect a truncated body.
    return plain


def _check_frames(body: bytes) -> None:
    """Raise ``EOFError`` unless ``body`` consists of complete zstd frames (RFC 8878)."""
    position = 0
    while position < len(body):
        if body[position + 1 : position + 4] == b"\x2a\x4d\x18" and body[position] & 0xF0 == 0x50:
            position += 8 + int.from_bytes(body[position + 4 : position + 8], "little")
            continue
        header = body[position : position + 18]
        position += zstandard.frame_header_size(header)
        last = False
        while not last:
            block = int.from_bytes(body[position : position + 3], "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            position += 3 + (1 if kind == _RUN_OF_ONE_BYTE else size)
            if position > len(body):
                raise EOFError("the data is truncated")
        position += 4 * zstandard.get_frame_parameters(header).has_checksum
    if position != len(body):
        raise EOFError("the data is truncated")


def _lz4(body: bytes, most: int) -> bytes:
    with lz4.frame.open(io.BytesIO(body)) as frames:
        return bytes(frames.read(most))


_RUN_OF_ONE_BYTE = 1
"""Kind of a zstd block that stores one byte and its number of repetitions."""

_DECOMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "deflate": _gzip,
    "zstd": _zstd,
    "lz4": _lz4,
}


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Returns ``body`` decoded from ``encoding`` (a ``Content-Encoding``).

    Raises :class:`BodyTooLarge` beyond ``limit`` bytes and :class:`UnknownEncoding` if the encoding is not supported or
    the body is damaged or truncated. Allocates at most ``limit`` bytes in addition to ``body``.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _DECOMPRESSORS:
        raise UnknownEncoding(f"Unknown Content-Encoding {encoding[:40]!r}: use {', '.join(_DECOMPRESSORS)}")
    try:
        plain = _DECOMPRESSORS[encoding](body, limit + 1)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError, OSError) as error:
        raise UnknownEncoding(f"The body is not {encoding}: {error}") from error
    if len(plain) > limit:
        raise BodyTooLarge(limit)
    return plain
