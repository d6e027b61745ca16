"""Reads records with header names that are not UTF-8, which any producer can write and aiokafka cannot read.

    header b"\xff\xfeid"   →   "\ufffd\ufffdid"

aiokafka raises ``UnicodeDecodeError`` for the whole batch, at each attempt: the partition would be read no further, by
any process. Such a batch is decoded again by aiokafka's Python code; all others are as fast as before.
``inflation.py`` gives these records to all consumers.
"""

import struct
from collections.abc import Iterator
from typing import Any

from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

_BASE_OFFSET_AND_LENGTH = struct.Struct(">qi")


class LenientRecords:
    """What a fetch returned of a partition, as ``MemoryRecords`` gives it."""

    def __init__(self, fetched: bytes) -> None:
        """``fetched``: batches as the broker sends them."""
        self._fetched = fetched
        self._records = MemoryRecords(fetched)
        self._taken = 0

    def has_next(self) -> bool:
        """Whether there is another batch."""
        return bool(self._records.has_next())

    def next_batch(self) -> "_Batch | None":
        """Returns the next batch; ``None`` if there is none."""
        batch = self._records.next_batch()
        self._taken += 1
        return None if batch is None else _Batch(batch, self._fetched, self._taken - 1)

    def size_in_bytes(self) -> int:
        """Returns the size of all batches."""
        return int(self._records.size_in_bytes())


class _Batch:
    """A batch, which behaves as the one of aiokafka does, but for header names."""

    def __init__(self, batch: Any, fetched: bytes, number: int) -> None:
        self._batch = batch
        self._fetched = fetched
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        read = 0
        try:
            for record in self._batch:
                yield record
                read += 1
        except UnicodeDecodeError:
            rest = iter(self._again())
            for _ in range(read):
                next(rest)
            yield from rest

    def _again(self) -> Any:
        begin, end = 0, _end_of_batch(self._fetched, 0)
        for _ in range(self._number):
            begin, end = end, _end_of_batch(self._fetched, end)
        batch: Any = _DefaultRecordBatchPy(self._fetched[begin:end])
        batch._maybe_uncompress()
        batch._buffer = _Lenient(batch._buffer)
        return batch


def _end_of_batch(fetched: bytes, begin: int) -> int:
    """Returns where the batch at ``begin`` ends: its base offset and its length are before what the length counts."""
    _, length = _BASE_OFFSET_AND_LENGTH.unpack_from(fetched, begin)
    return begin + _BASE_OFFSET_AND_LENGTH.size + int(length)


class _Lenient(bytearray):
    """Bytes whose parts are decoded with a replacement character for what is not UTF-8."""

    def __getitem__(self, place: Any) -> Any:
        found: Any = super().__getitem__(place)
        return _Lenient(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode(encoding, "replace")
