"""Rows that the extension module appends to Arrow's buffers, in one order with rows that Python adds as values."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.streams.clickhouse.columns import (
    COUNT,
    JSON_TEXT,
    LABEL,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    NAME,
    PLACE,
    TEXT,
    TIME,
    ColumnType,
    Row,
    Table,
    TableRows,
    arrow_schema,
)

FORMS: dict[ColumnType, str] = {
    TEXT: "text",
    NAME: "text",
    LABEL: "text",
    JSON_TEXT: "json",
    TIME: "u64",
    COUNT: "u32",
    PLACE: "u64",
    MAYBE_NUMBER: "number",
    MAYBE_COUNT: "count",
}
"""How the extension module stores a column of a plain type."""


class NativeColumns(Protocol):
    """Columns of the extension module."""

    @property
    def count(self) -> int:
        """Number of rows."""


ColumnsT = TypeVar("ColumnsT", bound=NativeColumns)


class NativeRows(TableRows, Generic[ColumnsT]):
    """Collects rows of a table in order: those of plain records in the module's columns, and others as values."""

    def __init__(self, table: Table, always: Sequence[str], columns: ColumnsT | None) -> None:
        """``columns``: empty ones of the module; ``None``: all rows are added as values."""
        super().__init__(table, always)
        self._columns = columns
        self._before: list[int] = []

    def add(self, always: tuple[Any, ...], row: Row) -> None:
        super().add(always, row)
        self._before.append(0 if self._columns is None else self._columns.count)

    def to_arrow(self) -> pa.Table:
        """As :meth:`TableRows.to_arrow`; the rows leave this object."""
        if self._columns is None or not self._columns.count:
            return super().to_arrow()
        taken = pa.Table.from_arrays(self._release(self._columns), schema=arrow_schema(self.table))
        return _in_turn(taken, super().to_arrow(), self._before) if self._before else taken

    def _release(self, columns: ColumnsT) -> list[pa.Array]:
        """Returns the arrays of the rows in ``columns``, in the order of the table's columns; ``columns`` become
        empty."""
        raise NotImplementedError


def native_array(kind: pa.DataType, length: int, buffers: list[bytes | None], children: Sequence[Any] = ()) -> pa.Array:
    """Returns an array of type ``kind`` that the module made; ``children``: the same of its items, of a list, or of its
    keys and values, of a map."""
    views = [None if each is None else pa.py_buffer(each) for each in buffers]
    if not children:
        return pa.Array.from_buffers(kind, length, views)
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, length, views, children=[native_array(kind.value_type, *children[0])])
    kinds = (kind.key_type, kind.item_type)
    entries = pa.StructArray.from_arrays(
        [native_array(each, *child) for each, child in zip(kinds, children, strict=True)],
        fields=[kind.key_field, kind.item_field],
    )
    return pa.Array.from_buffers(kind, length, views, children=[entries])


def _in_turn(taken: pa.Table, added: pa.Table, before: Sequence[int]) -> pa.Table:
    """Returns all rows in one order: ``before[n]`` rows of ``taken`` are in front of row n of ``added``."""
    order, done = list[int](), 0
    for number, count in enumerate(before):
        order += (*range(done, count), taken.num_rows + number)
        done = count
    order += range(done, taken.num_rows)
    return pa.concat_tables([taken, added]).take(order)
