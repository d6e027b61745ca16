"""Records of a partition that are read and not written yet, partly converted to columns.

    add(records)  →  chunk() → converted to columns → put()  →  cut(), take()

Records are converted a few thousand at a time and then dropped: columns take a third of their memory. A chunk never
crosses the end of a full batch, so a batch consists of whole chunks and the records after them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import attrgetter

from aiokafka import TopicPartition

from headrace.streams.clickhouse.batches import RowBatch, convert, joined
from headrace.streams.clickhouse.cuts import full_end, next_cut
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord

CHUNK_RECORDS = 2048
"""Number of records from which on a chunk is converted."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of records from which on a chunk is converted."""

BACKLOG_RECORDS = 4096
"""Distance to the log end, in offsets, from which on a partition has a backlog."""
BACKLOG_LINGERS = 20
"""Largest factor on the linger: how long a batch waits to fill while there is a backlog."""

_NATIVE = (SPEEDUPS.Arrival,) if SPEEDUPS is not None else ()


@dataclass(frozen=True, slots=True)
class ConvertedChunk:
    """Records that were converted together."""

    end: int
    """One past the last of their offsets."""
    size: int
    """Bytes of their columns."""
    batch: RowBatch
    """Their rows."""


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch to write: the offsets ``[first, end)`` of a partition."""

    first: int
    """First offset."""
    end: int
    """One past the last offset."""
    chunks: list[ConvertedChunk]
    """Its converted part."""
    records: list[LogRecord]
    """The records after the chunks, not converted yet."""
    size: int
    """Bytes of chunks and records."""

    def rows(self) -> RowBatch:
        """Returns the whole batch, converted, and releases chunks and records. Takes about 5 µs per record."""
        batches = [chunk.batch for chunk in self.chunks]
        self.chunks.clear()
        if self.records:
            batches.append(convert(self.records))
            self.records.clear()
        return joined(batches)


@dataclass(slots=True)
class Pending:
    """Records of one partition that are read and not written yet."""

    first: int
    """Offset at which the next batch starts."""
    batch_size: int
    """Full batches end at multiples of this many offsets."""
    since: float = 0.0
    """When the first record of the next batch was added, in seconds of the caller's clock."""
    backlog_lingers: int = 0
    """Factor on the linger while there is a backlog. It is 0 for the first batch, and then doubles from 1 on to
    :data:`BACKLOG_LINGERS`: whenever the process is killed, about half of what it read is written."""
    _chunks: list[ConvertedChunk] = field(default_factory=list)
    _records: list[LogRecord] = field(default_factory=list)
    _columns_size: int = 0
    _totals: list[int] = field(default_factory=list)
    _dropped_size: int = 0
    _read_to: int = 0
    _latest: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether all records were taken."""
        return not self._chunks and not self._records

    @property
    def size(self) -> int:
        """Bytes of records and columns."""
        return self._columns_size + self._records_size()

    @property
    def read_to(self) -> int:
        """One past the last record that was read."""
        return max(self.first, self._read_to)

    def is_written_to(self, position: int) -> bool:
        """Whether there is nothing to write before ``position``, up to which the partition was read."""
        return self.is_empty and self.first < position

    def add(self, records: Sequence[LogRecord], now: float) -> None:
        """Append ``records``, which follow the existing ones."""
        if self.is_empty:
            self.since = now
        self._latest = now
        self._records.extend(records)
        self._read_to = records[-1].offset + 1

    def chunk(self) -> list[LogRecord]:
        """Returns the records to convert next; none while there are too few."""
        if len(self._records) < CHUNK_RECORDS and self._records_size() < CHUNK_BYTES:
            return []
        first = self._records[0].offset
        end = full_end(first, self.batch_size)
        if self._records[-1].offset < end:
            return self._records
        return self._records[: self._before(end)]

    def put(self, chunk: Sequence[LogRecord], batch: RowBatch) -> None:
        """Replace the records of ``chunk`` by ``batch``, their columns."""
        converted = ConvertedChunk(chunk[-1].offset + 1, batch.nbytes, batch)
        self._chunks.append(converted)
        self._columns_size += converted.size
        self._drop(len(chunk))

    def is_due(self, now: float, linger_s: float, reached: int | None) -> bool:
        """Whether the next batch should be cut although it is not full: its first record has waited for ``linger_s``.

        ``reached`` is the last known log end. If it is far ahead, the batch waits longer while records are being read,
        ``backlog_lingers`` times: a backlog needs large inserts. The first batch after a start does not wait if there
        is a backlog. Records of an open transaction are in front of the log end, and not read yet.
        """
        if self.backlog_lingers == 0 and reached is not None and reached - self.first >= BACKLOG_RECORDS:
            return True
        waits_longer = self.is_behind(reached) and now - self._latest < linger_s
        return now - self.since >= linger_s * (self.backlog_lingers if waits_longer else 1)

    def is_behind(self, reached: int | None) -> bool:
        """Whether the last known log end, ``reached``, is :data:`BACKLOG_RECORDS` or more ahead."""
        return reached is not None and reached - self.read_to >= BACKLOG_RECORDS

    def cut(self, *, early: bool) -> int | None:
        """Returns where to cut now, as :func:`next_cut`."""
        return next_cut(self.first, self.read_to, size=self.batch_size, early=early)

    def take(self, end: int) -> TakenBatch:
        """Remove and return everything before the cut ``end``, where the next batch starts."""
        chunks = [chunk for chunk in self._chunks if chunk.end <= end]
        records = self._records[: self._before(end)]
        columns = sum(chunk.size for chunk in chunks)
        taken = TakenBatch(self.first, end, chunks, records, columns + self._size_of_first(len(records)))
        self._chunks = self._chunks[len(chunks) :]
        self._columns_size -= columns
        self._drop(len(records))
        self.first, self.since = end, self._latest
        self.backlog_lingers = min(max(1, 2 * self.backlog_lingers), BACKLOG_LINGERS)
        return taken

    def _before(self, end: int) -> int:
        """Returns how many records are before the offset ``end``."""
        return bisect_left(self._records, end, key=_offset_of)

    def _drop(self, count: int) -> None:
        """Drop the first ``count`` records."""
        if count:
            self._dropped_size = self._totals[count - 1] if count <= len(self._totals) else 0
            self._records, self._totals = self._records[count:], self._totals[count:]

    def _records_size(self) -> int:
        return self._size_of_first(len(self._records))

    def _size_of_first(self, count: int) -> int:
        """Returns the bytes of the first ``count`` records. Each is counted once, at half a microsecond, and only if it
        must be: in a backlog records are converted before.
        """
        if count == 0:
            return 0
        uncounted = self._records[len(self._totals) : count]
        before = self._totals[-1] if self._totals else self._dropped_size
        self._totals += islice(accumulate(map(_size_of, uncounted), initial=before), 1, None)
        return self._totals[count - 1] - self._dropped_size


class PendingPartitions(dict[TopicPartition, Pending]):
    """What is read and not written of all partitions."""

    generation = -1
    """The assignment under which it was read (:attr:`AssignedPartitions.generation`); −1 if it must be read again."""


_offset_of = attrgetter("offset")


def _size_of(record: LogRecord) -> int:
    if isinstance(record, _NATIVE):
        return record.size  # without making its parts into objects
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum([len(name) + len(content or b"") for name, content in record.headers])
