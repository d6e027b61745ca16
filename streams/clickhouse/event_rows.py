"""Rows of the table `events`: the extension module appends those of plain records directly to Arrow's buffers.

    take(records, 0) → 7      the rows of records[0:7] are in columns; Python converts records[7] and adds its row
    take(records, 8) → 2048   … and the rest

The module reads :class:`speedups.Arrival` records whose envelope and payload are plainly valid. It is told here which
field fills which column (``rows.FIELDS``) and by which conversion; all other records, and all records without the
module, are converted by Python, with the same rows in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.schemas.arrays import MAX_BYTES, MAX_LOGPROB, decode_array
from headrace.schemas.events import FACTS
from headrace.streams.clickhouse.native_rows import FORMS, NativeRows, native_array
from headrace.streams.clickhouse.rows import EVENT_COLUMNS, FIELDS, WITHOUT_TRAJECTORY
from headrace.streams.clickhouse.tables import EVENTS
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag, tables_of
from headrace.streams.raw import LogRecord

if TYPE_CHECKING:
    from headrace.streams.native import speedups


def make_columns(known: Mapping[str, str]) -> "tuple[speedups.EventColumns | None, NativeLag]":
    """Returns empty columns of the extension module and what it lacks; ``None`` if it can fill no row.

    ``known``: the fields of each event type that the module was built for (``EVENT_FIELDS``).
    """
    if SPEEDUPS is None:
        return None, NativeLag()
    shapes, lag = tables_of(FACTS, known)
    try:
        columns = SPEEDUPS.EventColumns(
            columns=[(column.name, FORMS.get(column.type, column.type.clickhouse)) for column in EVENTS.inserted],
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


class EventRows(NativeRows["speedups.EventColumns"]):
    """Collects rows of `events` in order, from records and as values."""

    def __init__(self, *, by_models: bool = False) -> None:
        """``by_models``: leave every record to Python."""
        super().__init__(EVENTS, EVENT_COLUMNS, None if by_models or _COLUMNS is None else _COLUMNS.fresh())

    def take(self, records: Sequence[LogRecord], start: int) -> int:
        """Append the rows of the records, a list, from ``start`` on. Returns the index of the first that is left to
        Python. Raises only ``MemoryError``.
        """
        return start if self._columns is None else self._columns.take(records, start)

    def _release(self, columns: "speedups.EventColumns") -> list[pa.Array]:
        count = columns.count
        return [
            native_array(column.type.arrow, count, buffers)
            for column, buffers in zip(EVENTS.inserted, columns.release(), strict=True)
        ]
