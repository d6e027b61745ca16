"""Limits the decompressed size of record batches: consumers skip larger batches and log an error.

A broker limits the compressed size of a batch and does not check its decompressed size: 14 kB of zstd can be 150 MB,
and 1 MiB can be 30 GB. aiokafka decompresses every batch, so one such batch kills a process, and kills it again after
each restart. :func:`bound_inflation` gives aiokafka's consumers the limit of librdkafka: they treat a batch beyond it
as empty and continue after it.
"""

import gzip
import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import aiokafka.codec
import aiokafka.consumer.fetcher
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from headrace.schemas.kafka.header_names import LenientRecords

logger = logging.getLogger(__name__)

MAX_INFLATED_BYTES = 100_000_000
"""Largest decompressed batch: librdkafka's ``receive.message.max.bytes``. headrace writes no record above 32 MiB."""

_skipped: ContextVar[list[range] | None] = ContextVar("skipped", default=None)

_CHUNK_BYTES = 1024 * 1024
_LZ4_MAGIC = (0x184D2204).to_bytes(4, "little")
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}


class InflatedError(Exception):
    """A batch is larger than :data:`MAX_INFLATED_BYTES`. Raised before the whole batch is in memory."""


def bound_inflation() -> None:
    """Make every aiokafka consumer in this process skip batches that decompress to more than the limit."""
    bounded = {"zstd_decode": zstd_inflated, "gzip_decode": gzip_inflated, "lz4_decode": lz4_inflated}
    for batch in (DefaultRecordBatch, LegacyRecordBatch):  # Snappy needs no limit: 3 bytes decompress to at most 64
        for name, decode in bounded.items():
            setattr(sys.modules[batch.__module__], name, decode)
    aiokafka.consumer.fetcher.MemoryRecords = BoundedRecords


@contextmanager
def skipped_batches() -> Iterator[list[range]]:
    """Have reads within the block skip every compressed batch, and collect their offsets, one range per batch."""
    found: list[range] = []
    token = _skipped.set(found)
    try:
        yield found
    finally:
        _skipped.reset(token)


def zstd_inflated(payload: Any) -> bytes:
    """Decompress ``payload``; raise :class:`InflatedError` if it is too large."""
    with zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True) as reader:
        return _read(reader.read)


def gzip_inflated(payload: Any) -> bytes:
    """Decompress ``payload``; raise :class:`InflatedError` if it is too large."""
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as reader:
        return _read(reader.read)


def lz4_inflated(payload: Any) -> bytes:
    """Decompress ``payload``; raise :class:`InflatedError` if it is too large."""
    if largest_lz4(payload) > MAX_INFLATED_BYTES:
        raise InflatedError
    inflated: bytes = aiokafka.codec.lz4_decode(payload)
    return inflated


def largest_lz4(payload: Any) -> int:
    """Return an upper bound of the decompressed size of LZ4 frames, from the block sizes that the frames declare."""
    view, at, most = memoryview(payload), 0, 0
    while view[at : at + 4] == _LZ4_MAGIC and at + 6 < len(view):
        flags, block = view[at + 4], _LZ4_BLOCK_BYTES.get(view[at + 5] >> 4 & 7, 0)
        at += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while size := int.from_bytes(view[at : at + 4], "little") & 0x7FFF_FFFF:
            at += 4 + size + (4 if flags & 0x10 else 0)
            most += min(block, 255 * size)
        at += 4 + (4 if flags & 0x04 else 0)
    return most


def _read(read: Callable[[int], bytes]) -> bytes:
    parts, size = [], 0
    while part := read(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_INFLATED_BYTES:
            raise InflatedError
    return parts[0] if len(parts) == 1 else b"".join(parts)


class BoundedRecords:
    """aiokafka's ``MemoryRecords`` with its compressed batches wrapped in :class:`BoundedBatch`."""

    def __init__(self, fetched: bytes) -> None:
        self._records = LenientRecords(fetched)
        self.has_next = self._records.has_next
        self.size_in_bytes = self._records.size_in_bytes

    def next_batch(self) -> Any:
        """Return the next batch, or ``None`` at the end."""
        batch = self._records.next_batch()
        return BoundedBatch(batch) if getattr(batch, "compression_type", 0) else batch


class BoundedBatch:
    """A compressed batch that is empty if it decompresses to more than the limit, or within :func:`skipped_batches`."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        if (found := _skipped.get()) is not None:
            found.append(range(self._batch.base_offset, self._batch.next_offset))
            return
        try:
            yield from self._batch
        except InflatedError:
            logger.error(
                "the batch at offsets %d to %d decompresses to more than %d MB and is skipped: its producer should not "
                "be allowed to write to this topic",
                self._batch.base_offset, self._batch.next_offset - 1, MAX_INFLATED_BYTES // 1_000_000,
            )  # fmt: skip
