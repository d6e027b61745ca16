"""Specs of ClickHouse tables, rendered to DDL, to Arrow schemas and to documentation.

Column("tool", LABEL, "Name of the tool; empty where the event has none.")
→ `tool` LowCardinality(String) COMMENT 'Name of the tool; …'      and      pa.field("tool", pa.string())
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Row: TypeAlias = dict[str, Any]
"""A row by column name; columns that are left out get their type's empty value."""

RECORD_COLUMNS = ("id", "time", "source", "partition", "offset")
"""Columns that every row of a record fills, in any table."""

DEDUPLICATION_WINDOW = 10_000
"""Number of inserts whose tokens a table remembers: most of an hour at a few per second; a restart takes seconds."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type in ClickHouse and Arrow, with its empty value."""

    clickhouse: str
    """Type in DDL, as in ``system.columns``."""
    arrow: pa.DataType
    """Type of an insert."""
    empty: Any
    """Value of a row that leaves the column out."""
    codec: str = ""
    """Compression codec, if not the default."""


_MS = pa.timestamp("ms", "UTC")
EARLIEST_MS = -2_208_988_800_000
"""Earliest time that ClickHouse can store, the start of 1900, in Unix milliseconds."""
LATEST_MS = 10_413_791_999_999
"""Latest time that ClickHouse can store, the end of 2299, in Unix milliseconds."""

TEXT = ColumnType("String", pa.string(), "")
LABEL = ColumnType("LowCardinality(String)", pa.string(), "")
JSON_TEXT = ColumnType("String", pa.string(), "", codec="ZSTD(3)")
TIME = ColumnType("DateTime64(3, 'UTC')", _MS, 0)
COUNT = ColumnType("UInt32", pa.uint32(), 0)
PLACE = ColumnType("UInt64", pa.uint64(), 0)
FLAG = ColumnType("Bool", pa.bool_(), False)
NUMBER = ColumnType("Float64", pa.float64(), 0.0)
MAYBE_NUMBER = ColumnType("Nullable(Float64)", pa.float64(), None)
MAYBE_COUNT = ColumnType("Nullable(UInt32)", pa.uint32(), None)
LABELS = ColumnType("Array(LowCardinality(String))", pa.list_(pa.string()), ())
COUNTS = ColumnType("Array(UInt32)", pa.list_(pa.uint32()), ())
NUMBERS_BY_NAME = ColumnType("Map(LowCardinality(String), Float64)", pa.map_(pa.string(), pa.float64()), ())
COUNTS_BY_NAME = ColumnType("Map(LowCardinality(String), UInt32)", pa.map_(pa.string(), pa.uint32()), ())


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its description, which ``DESCRIBE TABLE`` shows."""

    name: str
    """Name."""
    type: ColumnType
    """Type."""
    about: str
    """Description, with the unit."""
    was: str = ""
    """Its name in an older release."""


@dataclass(frozen=True, slots=True)
class View:
    """A named query over headrace's tables."""

    name: str
    """Name in ClickHouse."""
    about: str
    """Description of a row."""
    sql: str
    """The query."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table in which rows of equal ``key`` are merged into the last one written."""

    name: str
    """Name in ClickHouse."""
    about: str
    """Description of a row."""
    columns: tuple[Column, ...]
    """Columns, in order."""
    key: tuple[str, ...]
    """Sorting key; rows with equal keys are duplicates."""
    keep_days: int | None = None
    """Retention of rows in days, by ``time``; ``None`` keeps them forever."""

    def __post_init__(self) -> None:
        missing = set(self.key) - {column.name for column in self.columns}
        if missing:
            raise ValueError(f"table {self.name}: key columns {', '.join(sorted(missing))} do not exist")


def create_statement(table: Table) -> str:
    """Returns the DDL of ``table``, which does nothing if the table exists."""
    columns = ",\n".join(f"    {_column_clause(column)}" for column in table.columns)
    expiry = f"\nTTL toDateTime(time) + INTERVAL {table.keep_days} DAY" if table.keep_days else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.name}\n(\n{columns}\n)\n"
        f"ENGINE = ReplacingMergeTree\nORDER BY ({', '.join(f'`{name}`' for name in table.key)}){expiry}\n"
        f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}\n"
        f"COMMENT {_literal(table.about)}"
    )


def view_statement(view: View) -> str:
    """Returns the DDL of ``view``, which replaces that of an older release."""
    return f"CREATE OR REPLACE VIEW {view.name} AS\n{view.sql}\nCOMMENT {_literal(view.about)}"


def rename_statements(table: Table, present: Iterable[str]) -> list[str]:
    """Returns the DDL that renames old columns of ``table``, which has the columns ``present``, to current names."""
    there = set(present)
    return [
        f"ALTER TABLE {table.name} RENAME COLUMN `{column.was}` TO `{column.name}`"
        for column in table.columns
        if column.was in there and column.name not in there
    ]


def add_column_statement(table: Table, column: Column) -> str:
    """Returns the DDL that adds ``column`` to an older ``table``."""
    return f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {_column_clause(column)}"


def arrow_schema(table: Table) -> pa.Schema:
    """Returns the Arrow schema of an insert into ``table``."""
    return pa.schema([pa.field(column.name, column.type.arrow) for column in table.columns])


def arrow_table(table: Table, rows: Iterable[Row]) -> pa.Table:
    """Returns ``rows`` as one Arrow table. Raises as :meth:`TableRows.add` and :meth:`TableRows.to_arrow` do."""
    held = TableRows(table)
    for row in rows:
        held.add((), row)
    return held.to_arrow()


class TableRows:
    """Collects rows of one table by column, to convert them to Arrow."""

    def __init__(self, table: Table, always: Sequence[str] = ()) -> None:
        """``always`` names the columns that every row fills."""
        self.table = table
        self._names = tuple(always)
        self._always: list[tuple[Any, ...]] = []
        self._others: dict[str, tuple[list[int], list[Any]]] = {
            column.name: ([], []) for column in table.columns if column.name not in always
        }

    def add(self, always: tuple[Any, ...], row: Row) -> None:
        """Append a row: values of the columns that every row fills, in order, and other values by name. A text may be
        given as UTF-8 bytes. Raises ``KeyError``, and adds nothing, if the table lacks a column.
        """
        if unknown := row.keys() - self._others.keys():
            raise KeyError(f"table {self.table.name} has no column {', '.join(sorted(unknown))}")
        at = len(self._always)
        self._always.append(always)
        for name, value in row.items():
            places, values = self._others[name]
            places.append(at)
            values.append(value)

    def add_row(self, row: Row) -> None:
        """Append ``row``, which names every column that it fills. Raises ``KeyError`` as :meth:`add`."""
        others = dict(row)
        self.add(tuple(others.pop(name) for name in self._names), others)

    def to_arrow(self) -> pa.Table:
        """Returns the rows as an Arrow table; missing values are their type's empty value.

        Raises Arrow's exceptions, or ``OverflowError``, for a value that its column cannot hold.
        """
        always = dict(zip(self._names, zip(*self._always, strict=True), strict=False))
        arrays = []
        for column in self.table.columns:
            array = self._array(column, always.get(column.name))
            _check_times(column, array)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))

    def _array(self, column: Column, filled: Sequence[Any] | None) -> pa.Array:
        count, empty = len(self._always), column.type.empty
        if filled is not None:
            return pa.array(filled, column.type.arrow)
        places, values = self._others.get(column.name, ((), ()))
        if not values:
            return pa.repeat(pa.scalar(empty, column.type.arrow), count)
        if len(values) < count:
            spread = [empty] * count
            for place, value in zip(places, values, strict=True):
                spread[place] = value
            values = spread
        return pa.array(values, column.type.arrow)


def _check_times(column: Column, array: pa.Array) -> None:
    # ClickHouse accepts a time that its type cannot hold, and stores a different one.
    if column.type is not TIME or not len(array):
        return
    bounds = pc.min_max(pc.cast(array, pa.int64()))
    for value in (bounds["min"].as_py(), bounds["max"].as_py()):
        if not EARLIEST_MS <= value <= LATEST_MS:
            raise pa.ArrowInvalid(f"{column.name} is {value} ms, and a time is from 1900 to 2299")


def markdown(tables: Iterable[Table], views: Iterable[View] = ()) -> str:
    """Returns the documentation of ``tables`` and ``views``: heading, description, and columns or query of each."""
    parts = []
    for table in tables:
        lines = [f"### `{table.name}`", "", f"{table.about} Sorted by {', '.join(f'`{name}`' for name in table.key)}."]
        lines += ["", "| column | type | what |", "|---|---|---|"]
        lines += [f"| `{column.name}` | `{column.type.clickhouse}` | {column.about} |" for column in table.columns]
        parts.append("\n".join(lines))
    parts += [f"### `{view.name}`\n\nA view. {view.about}\n\n```sql\n{view.sql}\n```" for view in views]
    return "\n\n".join(parts) + "\n"


def missing_columns(table: Table, present: Mapping[str, str]) -> list[Column]:
    """Columns of ``table`` that an older table in the database (name → type) lacks.

    Raises ``ValueError`` where a type differs: rows would be read wrongly, so a person has to decide.
    """
    for column in table.columns:
        found = present.get(column.name, column.type.clickhouse)
        if found != column.type.clickhouse:
            raise ValueError(
                f"column {column.name} of table {table.name} is {found}, headrace needs {column.type.clickhouse}: "
                f"rename the table and let the sink fill it again from Kafka (RENAME TABLE {table.name} TO …)"
            )
    return [column for column in table.columns if column.name not in present]


def _column_clause(column: Column) -> str:
    codec = f" CODEC({column.type.codec})" if column.type.codec else ""
    return f"`{column.name}` {column.type.clickhouse} COMMENT {_literal(column.about)}{codec}"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
