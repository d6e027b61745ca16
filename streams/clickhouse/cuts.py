"""Boundaries of batches of a partition. Pure, so that a restart cuts batches as the previous process did.

An insert is exactly-once if it is repeated with the same rows and the same token. The token contains offsets, so a
batch must be cut at the same offsets when it is read again. Two rules ensure that:

- A full batch ends at a multiple of the batch size. Every process that reads far enough finds the same end.
- A batch that is cut early, because its rows must become visible or take too much memory, ends where the partition
  ended at that moment. This offset is committed as metadata of the group's position *before* the insert; the next
  process that reads the partition finds it there and cuts at it.

If a process inserts although its partition has been reassigned, it repeats a batch that the new owner cuts identically:
both use the same announced cut, and the second insert is dropped. If retention has deleted the first records of an
announced batch, it is repeated without them, under the same token: the log start is committed then, and the metadata
says where the batch began. The tables' ReplacingMergeTree is an additional
safeguard.

A topic that is deleted and created again starts at offset 0, and the group's commits remain. So tokens and commits name
the topic's id.
"""

from typing import NamedTuple

import pyarrow as pa

from headrace.streams.clickhouse.columns import Table


def next_cut(first: int, read_to: int, *, size: int, announced: int | None = None, early: bool = False) -> int | None:
    """Returns the end (exclusive) of the batch that starts at offset ``first``; ``None`` while it should still grow.

    ``read_to`` is one past the last record read. ``announced`` is the end that was committed for this start, and takes
    precedence. ``early`` cuts a batch that is not full. Full batches end at multiples of ``size`` offsets.
    """
    if read_to <= first:
        return None
    if announced is not None and announced > first:
        return announced if read_to >= announced else None
    full = full_end(first, size)
    if read_to >= full:
        return full
    return read_to if early else None


def full_end(first: int, size: int) -> int:
    """Returns the end (exclusive) of a full batch that starts at offset ``first``: the next multiple of ``size``."""
    return (first // size + 1) * size


class CommitMetadata(NamedTuple):
    """Metadata of a commit."""

    topic_id: str = ""
    """Id of the topic that was read; empty if it is unknown."""
    cut: int | None = None
    """End of the batch that starts at the committed offset; ``None`` if it was not announced."""
    first: int | None = None
    """Offset at which the announced batch began, before retention deleted its first records; ``None``: at the committed
    offset. The batch's token contains it."""

    @classmethod
    def parse(cls, text: str) -> "CommitMetadata":
        """Parse metadata; what is missing or something else stays empty."""
        fields = dict(word.partition("=")[::2] for word in text.split(" "))
        cut, first = (int(text) if (text := fields.get(name, "")).isdecimal() else None for name in ("cut", "first"))
        return cls(fields.get("topic", ""), cut, first)

    def __str__(self) -> str:
        """``topic=Zk0dPQ2wT8mAlBZc8sJ6jg cut=812``, and ``first=790`` if the batch began there."""
        numbers = {"cut": self.cut, "first": self.first}
        words = [f"{name}={number}" for name, number in numbers.items() if number is not None]
        return " ".join([f"topic={self.topic_id}", *words])


def resumed_cut(cut: int | None, committed: int, begin: int, end: int) -> int | None:
    """Returns the cut that the batch from ``committed`` on must end at; ``None`` if it may end anywhere.

    ``cut`` was announced at ``committed``; the log holds the offsets ``begin`` to ``end``. If it holds nothing of the
    batch, or not all of its end, the batch cannot be repeated.
    """
    return cut if cut is not None and max(committed, begin) < cut <= end else None


def deduplication_token(topic: str, topic_id: str, partition: int, first: int, end: int, table: Table) -> str:
    """Returns the token for inserting the batch ``[first, end)`` into ``table``:
    ``events:Zk0dPQ2wT8mAlBZc8sJ6jg:2:7104-7999:events``."""
    return f"{topic}:{topic_id}:{partition}:{first}-{end - 1}:{table.name}"


def halves(rows: pa.Table) -> tuple[pa.Table, pa.Table] | None:
    """Split ``rows`` in two between records; ``None`` if they belong to one record.

    Rows are in the order of their column ``offset``. The same rows are always split identically.
    """
    offsets = rows.column("offset").to_pylist()
    middle = len(offsets) // 2
    ends = [n for n in range(1, len(offsets)) if offsets[n] != offsets[n - 1]]
    if not ends:
        return None
    cut = min(ends, key=lambda end: abs(end - middle))
    return rows.slice(0, cut), rows.slice(cut)
