"""Specs of ClickHouse tables, and their Arrow schemas; :mod:`ddl` renders them to statements and documentation.

Column("tool", LABEL, "Name of the tool; empty where the event has none.")
→ `tool` LowCardinality(String) COMMENT 'Name of the tool; …'      and      pa.field("tool", pa.string())
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.topics import FOREVER, Topic

Row: TypeAlias = dict[str, Any]
"""A row by column name; columns that are left out get their type's empty value."""

RECORD_COLUMNS = ("id_sent", "time", "source", "partition", "offset", "logged_at")
"""Columns that every row of a record fills, in any table."""
RecordValues: TypeAlias = tuple[Any, ...]
"""Their values, in order."""


_DAY_MS = 24 * 3600 * 1000


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
NAME = ColumnType("String", pa.string(), "", codec="ZSTD(1)")
"""An id that may be any text: most are UUIDs as text, of which this codec stores half."""
UUID = ColumnType("UUID", pa.string(), "")
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
NAMES = ColumnType("Array(String)", pa.list_(pa.string()), (), codec="ZSTD(1)")
COUNTS = ColumnType("Array(UInt32)", pa.list_(pa.uint32()), ())
NUMBERS = ColumnType("Array(Float64)", pa.list_(pa.float64()), ())
MAYBE_NUMBERS = ColumnType("Array(Nullable(Float64))", pa.list_(pa.float64()), ())
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
    computed: str = ""
    """Expression by which ClickHouse computes it from other columns of an insert; inserts leave it out."""
    only_inserted: bool = False
    """Whether it exists in inserts only: others are computed from it, and it is not stored."""
    from_old: str = ""
    """Expression over the columns of a table of an older release, which had no such column, for its migration."""


@dataclass(frozen=True, slots=True)
class Index:
    """What ClickHouse keeps of a column for each granule, at most 8,192 rows, to read only those granules that may have
    a value."""

    name: str
    """Name."""
    column: str
    """The column."""
    kind: str
    """What is kept, as in DDL: minmax, or bloom_filter with the share of granules that are read in vain."""


BY_TIME = Index("by_time", "time", "minmax")


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
    topic: Topic | None = None
    """The topic whose records fill it, which gives its retention; ``None`` if it is not derived from records."""
    clock: str = ""
    """The column by which its rows are partitioned and expire; empty for one partition without expiry."""
    keep_ms: int = FOREVER
    """Retention of rows in milliseconds if it has no topic."""
    newest_by: str = ""
    """Column by which one of the rows of equal ``key`` is the last one; empty if that is the one written last."""
    computed_from: tuple[str, ...] = ()
    """Names of the tables from whose rows its rows are computed; empty for rows of records."""
    indexes: tuple[Index, ...] = ()
    """Indexes by columns with which ``key`` does not begin, apart from that by time."""

    def __post_init__(self) -> None:
        names = {column.name for column in self.columns}
        missing = ({*self.key, self.clock, self.newest_by} - {""}) - names
        if missing:
            raise ValueError(f"table {self.name}: the columns {', '.join(sorted(missing))} of its key do not exist")
        if unknown := {index.column for index in self.indexes} - names:
            raise ValueError(f"table {self.name}: the columns {', '.join(sorted(unknown))} of its indexes do not exist")

    @property
    def keep_days(self) -> int | None:
        """Retention of rows in days, that of its topic; ``None`` keeps them forever. Of a compacted topic the newest
        records are kept forever."""
        kept = self.keep_ms if self.topic is None else FOREVER if self.topic.compacted else self.topic.retention_ms
        return None if kept == FOREVER else max(1, -(-kept // _DAY_MS))

    @property
    def all_indexes(self) -> tuple[Index, ...]:
        """``indexes``, and one by the record's time unless rows are partitioned by it."""
        has_time = any(column.name == "time" for column in self.columns)
        return (*((BY_TIME,) if has_time and self.clock != "time" else ()), *self.indexes)

    @property
    def inserted(self) -> tuple[Column, ...]:
        """The columns of an insert."""
        return tuple(column for column in self.columns if not column.computed)

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns that can be read."""
        return tuple(column for column in self.columns if not column.only_inserted)


def arrow_schema(table: Table) -> pa.Schema:
    """Returns the Arrow schema of an insert into ``table``."""
    return pa.schema([pa.field(column.name, column.type.arrow) for column in table.inserted])


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
        self._others = frozenset(column.name for column in table.inserted if column.name not in always)
        self._rows: list[Row] = []
        self._filled: set[str] = set()

    def add(self, always: tuple[Any, ...], row: Row) -> None:
        """Append a row: values of the columns that every row fills, in order, and other values by name. A text may be
        given as UTF-8 bytes. Raises ``KeyError``, and adds nothing, if the table lacks a column.
        """
        names = row.keys()
        if not names <= self._filled:
            if unknown := names - self._others:
                raise KeyError(f"table {self.table.name} has no column {', '.join(sorted(unknown))}")
            self._filled |= names
        self._always.append(always)
        self._rows.append(row)

    def add_row(self, row: Row) -> None:
        """Append ``row``, which names every column that it fills. Raises ``KeyError`` as :meth:`add`."""
        others = dict(row)
        self.add(tuple(others.pop(name) for name in self._names), others)

    def to_arrow(self) -> pa.Table:
        """Returns the rows as an Arrow table; missing values are their type's empty value.

        Raises Arrow's exceptions, or ``OverflowError``, for a value that its column cannot hold.
        """
        always = dict(zip(self._names, zip(*self._always, strict=True), strict=False))
        arrays = [self._array(column, always.get(column.name)) for column in self.table.inserted]
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))

    def _array(self, column: Column, always: Sequence[Any] | None) -> pa.Array:
        if always is not None:
            return checked_array(column, always)
        name, empty = column.name, column.type.empty
        if name not in self._filled:
            return pa.repeat(pa.scalar(empty, column.type.arrow), len(self._rows))
        return checked_array(column, [row.get(name, empty) for row in self._rows])


def checked_array(column: Column, values: Sequence[Any]) -> pa.Array:
    """Returns ``values`` as an array of ``column``. Raises as :meth:`TableRows.to_arrow`."""
    array = pa.array(values, column.type.arrow)
    # ClickHouse accepts a time that its type cannot hold, and stores a different one.
    if column.type is TIME and len(array):
        bounds = pc.min_max(pc.cast(array, pa.int64()))
        for value in (bounds["min"].as_py(), bounds["max"].as_py()):
            if not EARLIEST_MS <= value <= LATEST_MS:
                raise pa.ArrowInvalid(f"{column.name} is {value} ms, and a time is from 1900 to 2299")
    return array
