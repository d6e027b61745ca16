"""Where one batch of a partition ends and the next begins: pure, so that a restart cuts as the dead process did.

An insert is exact as long as it is repeated with the same rows under the same token. The token names offsets, so a
batch must be cut at the same offsets when it is read again. Two rules give that:

- A full batch ends at a multiple of the batch size. Any process that reads far enough finds the same end.
- A batch that is cut early, because its rows shall be visible or would take too much memory, ends where the log
  happened to end. That offset is committed as metadata of the group's position *before* the insert; who reads the
  partition next finds it there and cuts at it.

A process that inserts although its partition went to another one repeats a batch that the other cuts alike: both
found the same announcement, and the second insert is dropped. The tables' ReplacingMergeTree is the net under it all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.streams.clickhouse.columns import Table
from headrace.streams.raw import LogRecord


def next_cut(first: int, read_to: int, *, size: int, announced: int | None = None, early: bool = False) -> int | None:
    """End (exclusive) of the batch that starts at offset ``first``; ``None`` while it should still grow.

    ``read_to`` is one past the last record read. ``announced`` is the end that was committed for this start, and wins.
    ``early`` cuts a batch that is not full. ``size`` is the distance of full batches' ends, in offsets.
    """
    if read_to <= first:
        return None
    if announced is not None and announced > first:
        return announced if read_to >= announced else None
    full = (first // size + 1) * size
    if read_to >= full:
        return full
    return read_to if early else None


def cut_metadata(end: int) -> str:
    """An announced cut as commit metadata: ``cut=812``."""
    return f"cut={end}"


def announced_cut(metadata: str) -> int | None:
    """The cut in commit metadata; ``None`` where there is none, as after a finished batch."""
    name, _, end = metadata.partition("=")
    return int(end) if name == "cut" and end.isdecimal() else None


def deduplication_token(topic: str, partition: int, first: int, end: int, table: Table) -> str:
    """Names the insert of the batch ``[first, end)`` into ``table``: ``events:2:7104-7999:events``."""
    return f"{topic}:{partition}:{first}-{end - 1}:{table.name}"


def halves(rows: pa.Table) -> tuple[pa.Table, pa.Table] | None:
    """``rows`` of several records cut in two between records; ``None`` where they are of one record.

    Rows stand in the order of their column ``offset``. The same rows are always cut alike.
    """
    offsets = rows.column("offset").to_pylist()
    middle = len(offsets) // 2
    ends = [n for n in range(1, len(offsets)) if offsets[n] != offsets[n - 1]]
    if not ends:
        return None
    cut = min(ends, key=lambda end: abs(end - middle))
    return rows.slice(0, cut), rows.slice(cut)


@dataclass(slots=True)
class Pending:
    """What was read of one partition and is not written yet."""

    first: int
    """Offset where the next batch starts."""
    announced: int | None = None
    """End of that batch, where one was announced."""
    records: list[LogRecord] = field(default_factory=list)
    """Records from ``first`` on, by offset."""
    size: int = 0
    """Bytes of their keys, values and headers."""
    since: float = 0.0
    """When the first of them was added, in the caller's seconds."""

    def add(self, records: Sequence[LogRecord], now: float) -> None:
        """Append ``records``, which follow those that are there."""
        if not self.records:
            self.since = now
        self.records.extend(records)
        self.size += _bytes_of(records)

    def cut(self, size: int, *, early: bool) -> int | None:
        """Where to cut now, as :func:`next_cut`."""
        read_to = self.records[-1].offset + 1 if self.records else self.first
        return next_cut(self.first, read_to, size=size, announced=self.announced, early=early)

    def take(self, end: int) -> list[LogRecord]:
        """Remove and return the records before offset ``end``; the next batch starts there."""
        batch = [record for record in self.records if record.offset < end]
        self.records = self.records[len(batch) :]
        self.size -= _bytes_of(batch)
        self.first, self.announced = end, None
        return batch


def _bytes_of(records: Sequence[LogRecord]) -> int:
    held = sum(len(record.key or b"") + len(record.value or b"") for record in records)
    return held + sum(len(name) + len(content or b"") for record in records for name, content in record.headers)
