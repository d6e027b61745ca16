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

import pyarrow as pa

from headrace.streams.clickhouse.columns import Table


def next_cut(first: int, read_to: int, *, size: int, announced: int | None = None, early: bool = False) -> int | None:
    """End (exclusive) of the batch that starts at offset ``first``; ``None`` while it should still grow.

    ``read_to`` is one past the last record read. ``announced`` is the end that was committed for this start, and wins.
    ``early`` cuts a batch that is not full. ``size`` is the distance of full batches' ends, in offsets.
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
    """End (exclusive) of a full batch that starts at offset ``first``: the next multiple of ``size``."""
    return (first // size + 1) * size


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
