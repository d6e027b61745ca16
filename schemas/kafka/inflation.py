"""Batches of records that inflate to more than anybody may hold: every reader passes over them, and says so.

A broker bounds a batch as it is compressed, and never asks what it inflates to: 14 kB of zstd are 150 MB, and 1 MiB may
be 30 GB. aiokafka inflates whatever comes, so one such batch ends a process, which meets it again when it comes back.
:func:`bound_inflation` gives aiokafka's consumers the bound that librdkafka has: for them a batch beyond it has no
records, and they go on behind it.
"""

import gzip
import io
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.codec
import aiokafka.consumer.fetcher
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.memory_records import MemoryRecords

logger = logging.getLogger(__name__)

MAX_INFLATED_BYTES = 100_000_000
"""Largest batch, inflated: librdkafka's ``receive.message.max.bytes``. No record of ours is larger than 32 MiB."""

_CHUNK_BYTES = 1024 * 1024
_LZ4_MAGIC = (0x184D2204).to_bytes(4, "little")
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}


class InflatedError(Exception):
    """A batch is larger than :data:`MAX_INFLATED_BYTES`. Raised before it is in memory."""


def bound_inflation() -> None:
    """Have every consumer of aiokafka in this process pass over batches that inflate to too much."""
    bounded = {"zstd_decode": zstd_inflated, "gzip_decode": gzip_inflated, "lz4_decode": lz4_inflated}
    for batch in (DefaultRecordBatch, LegacyRecordBatch):  # Snappy needs no bound: three bytes of it are at most 64
        for name, decode in bounded.items():
            setattr(sys.modules[batch.__module__], name, decode)
    aiokafka.consumer.fetcher.MemoryRecords = BoundedRecords


def zstd_inflated(payload: Any) -> bytes:
    """``payload`` inflated; raises :class:`InflatedError`."""
    with zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True) as reader:
        return _read(reader.read)


def gzip_inflated(payload: Any) -> bytes:
    """``payload`` inflated; raises :class:`InflatedError`."""
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as reader:
        return _read(reader.read)


def lz4_inflated(payload: Any) -> bytes:
    """``payload`` inflated; raises :class:`InflatedError`."""
    if largest_lz4(payload) > MAX_INFLATED_BYTES:
        raise InflatedError
    inflated: bytes = aiokafka.codec.lz4_decode(payload)
    return inflated


def largest_lz4(payload: Any) -> int:
    """Bytes that LZ4 frames may inflate to, at most: what their blocks, of a size that each frame states, can hold."""
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
    """aiokafka's ``MemoryRecords``, whose compressed batches are :class:`BoundedBatch`."""

    def __init__(self, fetched: bytes) -> None:
        self._records = MemoryRecords(fetched)
        self.has_next = self._records.has_next
        self.size_in_bytes = self._records.size_in_bytes

    def next_batch(self) -> Any:
        """The next batch, or ``None``."""
        batch = self._records.next_batch()
        return BoundedBatch(batch) if getattr(batch, "compression_type", 0) else batch


class BoundedBatch:
    """A batch without records where it inflates to too much."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._batch
        except InflatedError:
            logger.error(
                "a batch at the offsets %d to %d inflates to more than %d MB and is passed over: whoever wrote it can "
                "write to this topic, and should not",
                self._batch.base_offset, self._batch.next_offset - 1, MAX_INFLATED_BYTES // 1_000_000,
            )  # fmt: skip
