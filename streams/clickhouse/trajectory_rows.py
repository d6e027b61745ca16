"""Rows of the table `trajectories`: the extension module derives those of plain payloads, as Arrow columns.

    add_payload(always, b'{"trajectory_id":"t-1",…}') → True      the row is in columns
    add_payload(always, b'{ "trajectory_id":5}') → False          Python decides, and adds its row if it has one

It takes a seventh of what a struct and a dict of its row take. The rules are those of ``rows.py``: a module that was
built for other fields or columns leaves every trajectory to Python, with the same rows in the same order.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.schemas.arrays import MAX_BYTES, MAX_LOGPROB, decode_array
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.task_labels import DIFFICULTY_FIELDS
from headrace.streams.clickhouse.columns import (
    COUNTS,
    COUNTS_BY_NAME,
    FLAG,
    LABELS,
    MAYBE_NUMBERS,
    NAMES,
    NUMBER,
    RECORD_COLUMNS,
    Column,
    ColumnType,
    RecordValues,
    checked_array,
)
from headrace.streams.clickhouse.native_rows import FORMS, NativeRows, native_array
from headrace.streams.clickhouse.tables import TRAJECTORIES
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag, tables_of

if TYPE_CHECKING:
    from headrace.streams.native import speedups

_FORMS: dict[ColumnType, str] = FORMS | {
    FLAG: "flag",
    NUMBER: "double",
    LABELS: "list text",
    NAMES: "list text",
    COUNTS: "list u32",
    MAYBE_NUMBERS: "list number",
    COUNTS_BY_NAME: "map u32",
}
"""How the extension module stores a column."""


def make_columns(fields: str, columns: Mapping[str, str]) -> "tuple[speedups.TrajectoryColumns | None, NativeLag]":
    """Returns empty columns of the extension module and what it lacks; ``None`` if it can fill no row.

    ``fields``, ``columns``: what the module was built for (``TRAJECTORY_FIELDS``, ``TRAJECTORY_COLUMNS``).
    """
    if SPEEDUPS is None:
        return None, NativeLag()
    for column in _derived():
        if columns.get(column.name) != _FORMS.get(column.type):
            return None, NativeLag(records=f"it does not fill the column {column.name} of trajectories")
    shapes, lag = tables_of([Trajectory], {Trajectory.TYPE: fields})
    if not shapes:
        return None, lag
    try:
        made = SPEEDUPS.TrajectoryColumns(
            shape=shapes[Trajectory.TYPE],
            difficulty=DIFFICULTY_FIELDS,
            decode_array=decode_array,
            max_array_bytes=MAX_BYTES,
            max_logprob=MAX_LOGPROB,
        )
    except (LookupError, TypeError, ValueError) as error:
        return None, NativeLag(records=str(error.args[0]))
    return made, lag


def _derived() -> list[Column]:
    """The columns that a payload fills."""
    return [column for column in TRAJECTORIES.inserted if column.name not in RECORD_COLUMNS]


_COLUMNS, LAG = make_columns(
    getattr(SPEEDUPS, "TRAJECTORY_FIELDS", ""), getattr(SPEEDUPS, "TRAJECTORY_COLUMNS", {})
)  # fmt: skip


class TrajectoryRows(NativeRows["speedups.TrajectoryColumns"]):
    """Collects rows of `trajectories` in order, from payloads and as values."""

    def __init__(self, *, by_models: bool = False) -> None:
        """``by_models``: leave every payload to Python."""
        super().__init__(TRAJECTORIES, RECORD_COLUMNS, None if by_models or _COLUMNS is None else _COLUMNS.fresh())
        self._taken: list[RecordValues] = []

    def add_payload(self, always: RecordValues, value: bytes) -> bool:
        """Append the row of the trajectory in ``value``, with the values of ``RECORD_COLUMNS``. Returns ``False``, and
        adds nothing, if that is left to Python. Raises only ``MemoryError``.
        """
        if self._columns is None or not self._columns.take(value):
            return False
        self._taken.append(always)
        return True

    def _release(self, columns: "speedups.TrajectoryColumns") -> list[pa.Array]:
        always = dict(zip(RECORD_COLUMNS, zip(*self._taken, strict=True), strict=True))
        derived = columns.release()
        return [
            checked_array(column, always[column.name])
            if column.name in always
            else native_array(column.type.arrow, *derived[column.name])
            for column in TRAJECTORIES.inserted
        ]
