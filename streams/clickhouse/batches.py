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


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, converted."""

    tables: list[tuple[Table, pa.Table]]
    """Rows by table, in the records' order."""
    unreadable: list[tuple[LogRecord, UnreadableRecord]]
    """Records that nobody can read, and why."""
    unstorable: list[tuple[LogRecord, UnreadableRecord]]
    """Records that can be read and whose rows do not fit their tables, and why."""


def unstorable(why: object) -> UnreadableRecord:
    """Why a record that can be read is in no table."""
    message = f"it is in the log, and was taken from there; ClickHouse alone lacks it: {why}"
    return UnreadableRecord(DeadLetterError.UNSTORABLE, message)


def convert(records: Iterable[LogRecord]) -> Batch:
    """``records`` as rows of their tables; what cannot be read, or does not fit, is set aside and stops nothing.

    Whatever is raised for one record is that record's: only running out of memory ends the process.
    """
    batch = Batch([], [], [])
    fitting: list[tuple[LogRecord, _TableRows]] = []
    for record in records:
        try:
            envelope, payload = decode(record.headers, record.value)
        except UnreadableRecord as error:
            batch.unreadable.append((record, error))
            continue
        place = Place(record.partition, record.offset)
        try:
            fitting.append((record, to_rows(envelope, payload, place, record.value or b"")))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is of this record alone
            batch.unstorable.append((record, unstorable(f"{type(error).__name__}: {error}")))
    try:
        batch.tables.extend(_tables(rows for _, rows in fitting))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - found out record by record, which is seldom and so is done only now
        batch.tables.extend(_tables(_those_that_fit(fitting, batch)))
    return batch


def _those_that_fit(records: list[tuple[LogRecord, _TableRows]], batch: Batch) -> list[_TableRows]:
    """The rows that fit; the others' records are added to those of ``batch`` that are unstorable."""
    fitting = []
    for record, rows in records:
        try:
            _tables([rows])
            fitting.append(rows)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - Arrow raises types of its own and Python's
            batch.unstorable.append((record, unstorable(f"a value does not fit its column: {error}")))
    return fitting


def _tables(rows_of_records: Iterable[_TableRows]) -> list[tuple[Table, pa.Table]]:
    by_name: dict[str, tuple[Table, list[Row]]] = {}
    for rows in rows_of_records:
        for table, row in rows:
            by_name.setdefault(table.name, (table, []))[1].append(row)
    return [(table, arrow_table(table, rows)) for table, rows in by_name.values()]
