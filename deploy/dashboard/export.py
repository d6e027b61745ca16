"""A panel's result as a file, CSV or Parquet, made piece by piece while ClickHouse sends it.

b"".join(pieces(schema, batches, FileFormat.CSV)) → b"trajectory_id,reward\\r\\n0192…,0.5\\r\\n"
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, cast

from headrace.deploy.dashboard.panel import Panel, to_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from clickhouse_connect.driver.client import Client

_FORMULA = ("=", "+", "-", "@", "\t", "\r")

CSV_ROWS = 4096
"""Rows of a piece of CSV: they are Python objects for a moment."""
ROW_GROUP = 65_536
"""Rows of a row group of Parquet, which is held in memory until it is written."""


class FileFormat(StrEnum):
    """The format of a file."""

    CSV = "csv"
    """Text that a spreadsheet would read as a formula has an apostrophe before it."""
    PARQUET = "parquet"
    """Columns with their types; texts as they are."""


MEDIA_TYPES = {FileFormat.CSV: "text/csv; charset=utf-8", FileFormat.PARQUET: "application/vnd.apache.parquet"}


def read_pieces(
    client: "Client", panel: Panel, parameters: Mapping[str, str], file_format: FileFormat
) -> Iterator[bytes]:
    """Query ``panel`` and return its result as the pieces of a file. The memory that it takes does not depend on the
    number of rows, but for a result with maps. Raises the client's ``ClickHouseError`` or ``OSError``, also while the
    pieces are read.
    """
    import pyarrow as pa

    settings = {"output_format_arrow_string_as_string": 1, "output_format_arrow_low_cardinality_as_dictionary": 0}
    answer = client.raw_stream(panel.sql, parameters=dict(parameters), settings=settings, fmt="ArrowStream")
    # The client's annotation includes streams without close(); what it returns has it.
    with closing(cast(IO[bytes], answer)), pa.ipc.open_stream(answer) as reader:
        if any(pa.types.is_map(field.type) for field in reader.schema):
            # Their keys, which become columns, are known at the end: a panel with maps has a row for each step.
            whole = _with_keys_as_columns(reader.read_all())
            yield from pieces(whole.schema, whole.to_batches(), file_format)
        else:
            yield from pieces(reader.schema, reader, file_format)


def pieces(schema: "pa.Schema", batches: Iterable["pa.RecordBatch"], file_format: FileFormat) -> Iterator[bytes]:
    """Returns ``batches`` as the pieces of a file; missing values, and numbers that are not finite, are empty fields in
    CSV and null in Parquet.
    """
    finite = map(_finite, batches)
    return _csv(schema, finite) if file_format is FileFormat.CSV else _parquet(schema, finite)


def _finite(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [
        pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
        if pa.types.is_floating(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _csv(schema: "pa.Schema", batches: Iterable["pa.RecordBatch"]) -> Iterator[bytes]:
    yield _lines([schema.names])
    for batch in batches:
        for start in range(0, batch.num_rows, CSV_ROWS):
            columns = [column.to_pylist() for column in batch.slice(start, CSV_ROWS).columns]
            yield _lines([_cell(value) for value in row] for row in zip(*columns, strict=True))


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    # The text may be what a model or a user said, and a spreadsheet would run it.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


class _Written(io.RawIOBase):
    """Takes what is written and gives it away; it knows the position in the whole file."""

    def __init__(self) -> None:
        self._position = 0
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """Returns what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _parquet(schema: "pa.Schema", batches: Iterable["pa.RecordBatch"]) -> Iterator[bytes]:
    import pyarrow as pa
    from pyarrow import parquet

    written, waiting, rows = _Written(), list[pa.RecordBatch](), 0
    nullable = pa.schema([pa.field(field.name, field.type) for field in schema])

    def take(writer: "parquet.ParquetWriter") -> bytes:
        writer.write_table(pa.Table.from_batches(waiting).cast(nullable), row_group_size=ROW_GROUP)
        waiting.clear()
        return written.take()

    with parquet.ParquetWriter(written, nullable) as writer:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= ROW_GROUP:
                yield take(writer)
                rows = 0
        if waiting:
            yield take(writer)
    yield written.take()


def _with_keys_as_columns(table: "pa.Table") -> "pa.Table":
    import pyarrow as pa

    columns = [
        [dict(value) for value in column.to_pylist()] if pa.types.is_map(column.type) else column.to_pylist()
        for column in table.columns
    ]
    return pa.table(to_columns(table.column_names, columns))
