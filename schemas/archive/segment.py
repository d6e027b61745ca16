"""A segment of the archive: the records of an offset range of one partition, as a Parquet file.

    offset  timestamp_ms   key       value                headers
    7104    1790000000000  b"t-1"    b'{"tool": …}'       [("ce_type", b"headrace.tool.called.v1"), …]

The file's metadata names the range, whose stop may lie behind the last record: transaction markers use offsets, too.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.schemas.kafka.bookmarks import BookmarkedRecord

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])),
            nullable=False,
        ),
    ]
)
"""Columns: offset; timestamp in Unix milliseconds, a number because Kafka accepts times that no timestamp type holds;
key and payload as in the log; headers in their order, in which a name may occur twice."""

ROW_GROUP = 5_000
"""Records of a row group, whose least and greatest offset and timestamp stand in the footer."""

END_BYTES = 256 * 1024
"""Bytes at a file's end that contain its footer: about 400 bytes for each row group."""

_FORMAT = "1"
_PREFIX = "headrace."


class SegmentUnreadable(RuntimeError):
    """A file of the archive is not the segment that its path names."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """An offset range of one partition of one log."""

    topic: str
    """Topic."""
    topic_id: str
    """Id of the topic: a topic that is created again has another one, and its offsets mean other records."""
    partition: int
    """Partition."""
    first: int
    """First offset."""
    stop: int
    """First offset after the range."""


@dataclass(frozen=True, slots=True)
class ArchivedRecord:
    """A record as it was in the log; has the fields that readers of Kafka expect."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What the footer of a segment says."""

    part: LogPart
    """Its range."""
    newest_ms: int
    """Latest timestamp of its records, Unix milliseconds."""
    records: int
    """Number of its records."""


def to_parquet(part: LogPart, records: Iterable[BookmarkedRecord]) -> bytes:
    """Returns the file of ``records``, all committed records of ``part`` in order. Equal records give equal bytes."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    digest = hashlib.sha256()
    for record in records:
        _add(digest, record)
        columns["offset"].append(record.offset)
        columns["timestamp_ms"].append(record.timestamp)
        columns["key"].append(record.key)
        columns["value"].append(record.value)
        columns["headers"].append([{"name": name, "value": value} for name, value in record.headers])
    metadata = {
        f"{_PREFIX}format": _FORMAT,
        f"{_PREFIX}topic": part.topic,
        f"{_PREFIX}topic_id": part.topic_id,
        f"{_PREFIX}partition": str(part.partition),
        f"{_PREFIX}first": str(part.first),
        f"{_PREFIX}stop": str(part.stop),
        f"{_PREFIX}sha256": digest.hexdigest(),
        # Not from the statistics of the columns: pyarrow ends the process when it reads damaged ones.
        f"{_PREFIX}newest_ms": str(max(columns["timestamp_ms"], default=0)),
    }
    table = pa.table(columns, schema=SCHEMA.with_metadata(metadata))
    file = BytesIO()
    pq.write_table(
        table,
        file,
        compression="zstd",
        row_group_size=ROW_GROUP,
        use_dictionary=["headers.list.element.name"],
        write_statistics=["offset", "timestamp_ms"],
        write_page_checksum=True,
    )
    return file.getvalue()


def summary_of(end: bytes) -> SegmentSummary:
    """Returns the summary of the segment whose file ends with ``end``. Raises :class:`SegmentUnreadable`."""
    try:
        footer = pq.read_metadata(pa.BufferReader(end))
        return _summary(footer)
    except (pa.ArrowException, OSError, KeyError, ValueError, AttributeError) as error:
        raise SegmentUnreadable(f"no segment of the archive: {error}") from error


def read_segment(file: bytes, part: LogPart) -> Iterator[list[ArchivedRecord]]:
    """Yields the records of the segment ``file``, which must hold ``part``, in lists of up to :data:`ROW_GROUP`.

    Raises :class:`SegmentUnreadable` if it is damaged or holds something else.
    """
    try:
        opened = pq.ParquetFile(pa.BufferReader(file), page_checksum_verification=True)
        summary = _summary(opened.metadata)
        if summary.part != part:
            raise SegmentUnreadable(f"it holds {summary.part} instead of {part}")
        last, read, digest = part.first - 1, 0, hashlib.sha256()
        for batch in opened.iter_batches(ROW_GROUP, columns=SCHEMA.names):
            records = [_record(part, row) for row in batch.to_pylist()]
            for record in records:
                if not last < record.offset < part.stop:
                    raise SegmentUnreadable(f"offset {record.offset} follows {last} in {part}")
                last = record.offset
                _add(digest, record)
            read += len(records)
            yield records
        # A damaged header of a page, which has no checksum, can end a column early.
        if read != summary.records:
            raise SegmentUnreadable(f"{read} of {summary.records} records can be read in {part}")
        # Nor has anything else outside the pages' data.
        if digest.hexdigest() != opened.metadata.metadata[f"{_PREFIX}sha256".encode()].decode():
            raise SegmentUnreadable(f"its records are not those that were written to {part}")
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise SegmentUnreadable(f"{error}") from error


def _record(part: LogPart, row: Mapping[str, Any]) -> ArchivedRecord:
    headers = tuple((header["name"], header["value"]) for header in row["headers"])
    return ArchivedRecord(
        part.topic, part.partition, row["offset"], row["timestamp_ms"], row["key"], row["value"], headers
    )


def _add(digest: "hashlib._Hash", record: BookmarkedRecord | ArchivedRecord) -> None:
    parts: list[bytes | None] = [b"%d %d" % (record.offset, record.timestamp), record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    for part in parts:
        digest.update(b"-;" if part is None else b"%d;" % len(part))
        digest.update(part or b"")


def _summary(footer: Any) -> SegmentSummary:
    metadata = {name.decode(): value.decode() for name, value in (footer.metadata or {}).items()}
    if metadata[f"{_PREFIX}format"] != _FORMAT:
        raise ValueError(f"its format is {metadata[f'{_PREFIX}format']!r}, and this release reads {_FORMAT!r}")
    part = LogPart(
        metadata[f"{_PREFIX}topic"],
        metadata[f"{_PREFIX}topic_id"],
        *(int(metadata[f"{_PREFIX}{name}"]) for name in ("partition", "first", "stop")),
    )
    return SegmentSummary(part, int(metadata[f"{_PREFIX}newest_ms"]), footer.num_rows)
