"""Compressed request bodies, opened with a bound: a small body must not become a large one in memory."""

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
    """The body's encoding is not offered, or the body is not what it says."""


def _gzip(body: bytes, most: int) -> bytes:
    # 32: gzip and zlib headers alike, since clients send either as "deflate".
    return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most)


def _zstd(body: bytes, most: int) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True).read(most)


def _lz4(body: bytes, most: int) -> bytes:
    with lz4.frame.open(io.BytesIO(body)) as frames:
        return bytes(frames.read(most))


_DECOMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "deflate": _gzip,
    "zstd": _zstd,
    "lz4": _lz4,
}


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """``body`` as it was before ``encoding`` (a ``Content-Encoding``).

    Raises :class:`BodyTooLarge` past ``limit`` bytes and :class:`UnknownEncoding` where the encoding is not offered or
    the body is damaged.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _DECOMPRESSORS:
        raise UnknownEncoding(f"Unknown Content-Encoding {encoding[:40]!r}: use {', '.join(_DECOMPRESSORS)}")
    try:
        plain = _DECOMPRESSORS[encoding](body, limit + 1)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise UnknownEncoding(f"The body is not {encoding}: {error}") from error
    if len(plain) > limit:
        raise BodyTooLarge(limit)
    return plain
