"""Rows of the table `events`: the extension module appends those of plain records directly to Arrow's buffers.

    take(records, 0) → 7      the rows of records[0:7] are in columns; Python converts records[7] and adds its row
    take(records, 8) → 2048   … and the rest

The module reads :class:`speedups.Arrival` records whose envelope and payload are plainly valid. It is told here which
field fills which column (``rows.FIELDS``) and by which conversion; all other records, and all records without the
module, are converted by Python, with the same rows in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.schemas.arrays import MAX_BYTES, MAX_LOGPROB, decode_array
from headrace.schemas.events import FACTS
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
    TableRows,
    arrow_schema,
    in_turn,
)
from headrace.streams.clickhouse.rows import EVENT_COLUMNS, FIELDS, WITHOUT_TRAJECTORY
from headrace.streams.clickhouse.tables import EVENTS
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag, tables_of
from headrace.streams.raw import LogRecord

if TYPE_CHECKING:
    from headrace.streams.native import speedups

_FORMS: dict[ColumnType, str] = {
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
"""How the extension module stores a column, and converts the value of a field that fills it as ``rows`` does."""


def make_columns(known: Mapping[str, str]) -> "tuple[speedups.EventColumns | None, NativeLag]":
    """Returns empty columns of the extension module and what it lacks; ``None`` if it can fill no row.

    ``known``: the fields of each event type that the module was built for (``EVENT_FIELDS``).
    """
    if SPEEDUPS is None:
        return None, NativeLag()
    shapes, lag = tables_of(FACTS, known)
    try:
        columns = SPEEDUPS.EventColumns(
            columns=[(column.name, _FORMS.get(column.type, column.type.clickhouse)) for column in EVENTS.inserted],
            own=EVENT_COLUMNS,
            kinds={
                name: (shape, name not in WITHOUT_TRAJECTORY, [(field, column) for field, column, _ in FIELDS[name]])
                for name, shape in shapes.items()
            },
            decode_array=decode_array,
            max_array_bytes=MAX_BYTES,
            max_logprob=MAX_LOGPROB,
        )
    except (LookupError, TypeError, ValueError) as error:
        return None, replace(lag, records=str(error.args[0]))
    return columns, replace(lag, types=frozenset({model.TYPE for model in FACTS} - set(columns.types)))


_COLUMNS, LAG = make_columns(getattr(SPEEDUPS, "EVENT_FIELDS", {}))


class EventRows(TableRows):
    """Collects rows of `events` in order, from records and as values."""

    def __init__(self, *, by_models: bool = False) -> None:
        """``by_models``: leave every record to Python."""
        super().__init__(EVENTS, EVENT_COLUMNS)
        self._columns = None if by_models or _COLUMNS is None else _COLUMNS.fresh()
        self._before: list[int] = []

    def take(self, records: Sequence[LogRecord], start: int) -> int:
        """Append the rows of the records, a list, from ``start`` on. Returns the index of the first that is left to
        Python. Raises only ``MemoryError``.
        """
        return start if self._columns is None else self._columns.take(records, start)

    def add(self, always: tuple[Any, ...], row: Row) -> None:
        super().add(always, row)
        self._before.append(0 if self._columns is None else self._columns.count)

    def to_arrow(self) -> pa.Table:
        """As :meth:`TableRows.to_arrow`; the rows leave this object."""
        count = 0 if self._columns is None else self._columns.count
        if self._columns is None or not count:
            return super().to_arrow()
        arrays = []
        for column, buffers in zip(EVENTS.inserted, self._columns.release(), strict=True):
            views = [None if each is None else pa.py_buffer(each) for each in buffers]
            arrays.append(pa.Array.from_buffers(column.type.arrow, count, views))
        taken = pa.Table.from_arrays(arrays, schema=arrow_schema(EVENTS))
        return in_turn(taken, super().to_arrow(), self._before) if self._before else taken
