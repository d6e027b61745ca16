"""Records of one partition as Arrow tables. Pure: a batch that is repeated after a crash is the same batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.clickhouse.columns import Row, Table, arrow_table
from headrace.streams.clickhouse.rows import Place, to_rows
from headrace.streams.raw import LogRecord

_TableRows: TypeAlias = list[tuple[Table, Row]]

_MISFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
"""What a value raises that its column cannot hold, such as a sequence number past 32 bits."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, converted."""

    tables: list[tuple[Table, pa.Table]]
    """Rows by table, in the records' order."""
    unreadable: list[tuple[LogRecord, UnreadableRecord]]
    """Records that have no rows, and why."""


def convert(records: Iterable[LogRecord]) -> Batch:
    """``records`` as rows of their tables; what cannot be read is set aside and stops nothing."""
    readable: list[tuple[LogRecord, _TableRows]] = []
    unreadable: list[tuple[LogRecord, UnreadableRecord]] = []
    for record in records:
        try:
            readable.append((record, _rows_of(record)))
        except UnreadableRecord as error:
            unreadable.append((record, error))
    try:
        return Batch(_tables(rows for _, rows in readable), unreadable)
    except _MISFIT:
        # Seldom, so a batch is only gone through record by record once it has failed.
        fitting = []
        for record, rows in readable:
            try:
                _tables([rows])
                fitting.append(rows)
            except _MISFIT as error:
                misfit = UnreadableRecord(DeadLetterError.INVALID, f"a value does not fit its column: {error}")
                unreadable.append((record, misfit))
        return Batch(_tables(fitting), unreadable)


def _rows_of(record: LogRecord) -> _TableRows:
    envelope, payload = decode(record.headers, record.value)
    try:
        return to_rows(envelope, payload, Place(record.partition, record.offset), record.value or b"")
    except ValueError as error:
        raise UnreadableRecord(DeadLetterError.INVALID, f"{envelope.type}: {error}") from error


def _tables(rows_of_records: Iterable[_TableRows]) -> list[tuple[Table, pa.Table]]:
    by_name: dict[str, tuple[Table, list[Row]]] = {}
    for rows in rows_of_records:
        for table, row in rows:
            by_name.setdefault(table.name, (table, []))[1].append(row)
    return [(table, arrow_table(table, rows)) for table, rows in by_name.values()]
