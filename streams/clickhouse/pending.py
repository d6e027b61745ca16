"""What was read of a partition and is not written yet: records, and further ahead the columns that they became.

    add(records)  →  chunk() → converted to columns → put()  →  cut(), take()

Records are converted as they come, a few thousand at a time, and let go: as columns they take a third of the memory. A
chunk never crosses the end of a full or an announced batch, so that a batch is whole chunks and the records after them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from headrace.streams.clickhouse.batches import Batch, convert, joined
from headrace.streams.clickhouse.cuts import full_end, next_cut
from headrace.streams.raw import LogRecord

CHUNK_RECORDS = 2048
"""Records that are worth being converted by themselves."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of records that are."""

BACKLOG_RECORDS = 4096
"""Offsets that reading is behind the log, from which on they are a backlog."""
BACKLOG_LINGERS = 20
"""How many times the linger a batch of a backlog waits to be full."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that were converted together."""

    end: int
    """One past the last of their offsets."""
    size: int
    """Bytes that their columns take."""
    batch: Batch
    """Their rows."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch that is to be written: the offsets ``[first, end)`` of a partition."""

    first: int
    """First offset."""
    end: int
    """One past the last offset."""
    chunks: list[Chunk]
    """What is converted of it."""
    records: list[LogRecord]
    """What follows."""
    size: int
    """Bytes of all of it."""

    def rows(self) -> Batch:
        """All of it, converted. It is handed over: what this object held is let go. Takes some 5 µs a record."""
        batches = [chunk.batch for chunk in self.chunks]
        self.chunks.clear()
        if self.records:
            batches.append(convert(self.records))
            self.records.clear()
        return joined(batches)


@dataclass(slots=True)
class Pending:
    """What was read of one partition and is not written yet."""

    first: int
    """Offset where the next batch starts."""
    batch_size: int
    """Distance of full batches' ends, in offsets."""
    announced: int | None = None
    """End of the next batch, where one was announced."""
    since: float = 0.0
    """When the first record of the next batch was added, in the caller's seconds."""
    _chunks: list[Chunk] = field(default_factory=list)
    _records: list[LogRecord] = field(default_factory=list)
    _columns_size: int = 0
    _counted: int = 0
    _counted_size: int = 0
    _read_to: int = 0
    _latest: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether everything that was read was taken."""
        return not self._chunks and not self._records

    @property
    def size(self) -> int:
        """Bytes that records and columns take."""
        return self._columns_size + self._records_size()

    @property
    def read_to(self) -> int:
        """One past the last record that was read."""
        return max(self.first, self._read_to)

    def add(self, records: Sequence[LogRecord], now: float) -> None:
        """Append ``records``, which follow those that are there."""
        if self.is_empty:
            self.since = now
        self._latest = now
        self._records.extend(records)
        self._read_to = records[-1].offset + 1

    def chunk(self) -> list[LogRecord]:
        """The records to be converted next; none while there are too few."""
        if len(self._records) < CHUNK_RECORDS and self._records_size() < CHUNK_BYTES:
            return []
        first = self._records[0].offset
        end = self.announced
        if end is None or end <= first:
            end = full_end(first, self.batch_size)
        if self._records[-1].offset < end:
            return self._records
        return list(takewhile(lambda record: record.offset < end, self._records))

    def put(self, chunk: Sequence[LogRecord], batch: Batch) -> None:
        """``batch`` is what became of ``chunk``, which takes its place."""
        converted = Chunk(chunk[-1].offset + 1, batch.nbytes, batch)
        self._chunks.append(converted)
        self._columns_size += converted.size
        self._let_go(len(chunk))

    def is_ripe(self, now: float, linger_s: float, reached: int | None) -> bool:
        """Whether the next batch shall be cut though it is not full: its first record has waited for ``linger_s``.

        ``reached`` is how far the log is known to reach. Where that is far ahead the batch waits longer: what is in the
        log is read in a moment, and what a backlog needs is large inserts.
        """
        is_behind = reached is not None and reached - self.read_to >= BACKLOG_RECORDS
        return now - self.since >= linger_s * (BACKLOG_LINGERS if is_behind else 1)

    def cut(self, *, early: bool) -> int | None:
        """Where to cut now, as :func:`next_cut`."""
        return next_cut(self.first, self.read_to, size=self.batch_size, announced=self.announced, early=early)

    def take(self, end: int) -> Taken:
        """Remove and return what stands before offset ``end``, which is a cut; the next batch starts there."""
        chunks = [chunk for chunk in self._chunks if chunk.end <= end]
        records = [record for record in self._records if record.offset < end]
        columns = sum(chunk.size for chunk in chunks)
        taken = Taken(self.first, end, chunks, records, columns + _bytes_of(records))
        self._chunks = self._chunks[len(chunks) :]
        self._columns_size -= columns
        self._let_go(len(records))
        self.first, self.announced, self.since = end, None, self._latest
        return taken

    def _let_go(self, count: int) -> None:
        """Drop the first ``count`` records."""
        if count:
            self._records = self._records[count:]
            self._counted = self._counted_size = 0

    def _records_size(self) -> int:
        # In a backlog records are converted before anybody asks: what takes half a microsecond each is not done then.
        self._counted_size += _bytes_of(self._records[self._counted :])
        self._counted = len(self._records)
        return self._counted_size


def _bytes_of(records: Sequence[LogRecord]) -> int:
    held = sum([len(record.key or b"") + len(record.value or b"") for record in records])
    return held + sum([len(name) + len(content or b"") for record in records for name, content in record.headers])
