"""What a ClickHouse table is made of: one spec a table, rendered to DDL, to an Arrow schema and to documentation.

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
"""Columns that every row of a record fills, whichever its table."""

DEDUPLICATION_WINDOW = 10_000
"""Inserts whose tokens a table remembers. At a few a second that is most of an hour; a restart takes seconds."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type, as ClickHouse and as Arrow name it, and what stands where a row has nothing to say."""

    clickhouse: str
    """Type in DDL, as ``system.columns`` spells it."""
    arrow: pa.DataType
    """Type on the way in."""
    empty: Any
    """Value of a row that leaves the column out."""
    codec: str = ""
    """Compression where the default is not the right one."""


_MS = pa.timestamp("ms", "UTC")
EARLIEST_MS = -2_208_988_800_000
"""1900, where ClickHouse's times begin, in Unix milliseconds."""
LATEST_MS = 10_413_791_999_999
"""The end of 2299, where they end."""

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
    """A column with the sentence that explains it, which ``DESCRIBE TABLE`` shows."""

    name: str
    """Name."""
    type: ColumnType
    """Type."""
    about: str
    """What it holds, with its unit."""
    was: str = ""
    """Name under which an older release had it."""


@dataclass(frozen=True, slots=True)
class View:
    """A query under a name, over tables of ours."""

    name: str
    """Name in ClickHouse."""
    about: str
    """What a row is."""
    sql: str
    """The query."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows of equal ``key`` are one row: written twice, they are merged into the last one written."""

    name: str
    """Name in ClickHouse."""
    about: str
    """What a row is."""
    columns: tuple[Column, ...]
    """Columns, in order."""
    key: tuple[str, ...]
    """Sorting key, and what makes two rows the same."""
    keep_days: int | None = None
    """Days that rows stay, by ``time``; ``None`` keeps them."""

    def __post_init__(self) -> None:
        missing = set(self.key) - {column.name for column in self.columns}
        if missing:
            raise ValueError(f"table {self.name}: no column {', '.join(sorted(missing))} for its key")


def create_statement(table: Table) -> str:
    """DDL of ``table``; does nothing where it is there already."""
    columns = ",\n".join(f"    {_column_clause(column)}" for column in table.columns)
    expiry = f"\nTTL toDateTime(time) + INTERVAL {table.keep_days} DAY" if table.keep_days else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.name}\n(\n{columns}\n)\n"
        f"ENGINE = ReplacingMergeTree\nORDER BY ({', '.join(f'`{name}`' for name in table.key)}){expiry}\n"
        f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}\n"
        f"COMMENT {_literal(table.about)}"
    )


def view_statement(view: View) -> str:
    """DDL of ``view``, which replaces the one of an older release."""
    return f"CREATE OR REPLACE VIEW {view.name} AS\n{view.sql}\nCOMMENT {_literal(view.about)}"


def rename_statements(table: Table, present: Iterable[str]) -> list[str]:
    """DDL that gives columns of an older ``table``, which has the columns ``present``, their names of today."""
    there = set(present)
    return [
        f"ALTER TABLE {table.name} RENAME COLUMN `{column.was}` TO `{column.name}`"
        for column in table.columns
        if column.was in there and column.name not in there
    ]


def add_column_statement(table: Table, column: Column) -> str:
    """DDL that adds ``column`` to an older ``table``."""
    return f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {_column_clause(column)}"


def arrow_schema(table: Table) -> pa.Schema:
    """Arrow schema of an insert into ``table``."""
    return pa.schema([pa.field(column.name, column.type.arrow) for column in table.columns])


def arrow_table(table: Table, rows: Iterable[Row]) -> pa.Table:
    """``rows`` as one Arrow table. Raises as :meth:`TableRows.add` and :meth:`TableRows.to_arrow` do."""
    held = TableRows(table)
    for row in rows:
        held.add((), row)
    return held.to_arrow()


class TableRows:
    """Rows of one table by column, on their way into Arrow."""

    def __init__(self, table: Table, always: Sequence[str] = ()) -> None:
        """``always`` names the columns that every row fills."""
        self.table = table
        self._names = tuple(always)
        self._always: list[tuple[Any, ...]] = []
        self._others: dict[str, tuple[list[int], list[Any]]] = {
            column.name: ([], []) for column in table.columns if column.name not in always
        }

    def add(self, always: tuple[Any, ...], row: Row) -> None:
        """Append a row: values of the columns that every row fills, in order, and those of others by name. A text may
        be its UTF-8 bytes. Raises ``KeyError``, and adds nothing, where the table has no column of a name.
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
        """The rows as an Arrow table; columns that a row leaves out have their type's empty value there.

        Raises what Arrow raises, or ``OverflowError``, for a value that its column cannot hold.
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
    # ClickHouse takes a time that its type cannot hold, and shows another one.
    if column.type is not TIME or not len(array):
        return
    bounds = pc.min_max(pc.cast(array, pa.int64()))
    for value in (bounds["min"].as_py(), bounds["max"].as_py()):
        if not EARLIEST_MS <= value <= LATEST_MS:
            raise pa.ArrowInvalid(f"{column.name} is {value} ms, and a time is from 1900 to 2299")


def markdown(tables: Iterable[Table], views: Iterable[View] = ()) -> str:
    """The documentation of ``tables`` and ``views``: a heading, a sentence, and columns or the query for each."""
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
                f"rename the table and let the sink refill it from the log (RENAME TABLE {table.name} TO …)"
            )
    return [column for column in table.columns if column.name not in present]


def _column_clause(column: Column) -> str:
    codec = f" CODEC({column.type.codec})" if column.type.codec else ""
    return f"`{column.name}` {column.type.clickhouse} COMMENT {_literal(column.about)}{codec}"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
