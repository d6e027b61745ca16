"""Records of one partition as Arrow tables. Pure: a batch that is repeated after a crash is the same batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.clickhouse import tables
from headrace.streams.clickhouse.columns import RECORD_COLUMNS, Row, Table, TableRows, arrow_table
from headrace.streams.clickhouse.ordinary import add_ordinary
from headrace.streams.clickhouse.rows import EVENT_COLUMNS, Place, to_rows
from headrace.streams.raw import LogRecord

SetAside: TypeAlias = tuple[LogRecord, UnreadableRecord]
"""A record without a row, and why."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, converted."""

    tables: list[tuple[Table, pa.Table]] = field(default_factory=list)
    """Rows by table, in the records' order."""
    unreadable: list[SetAside] = field(default_factory=list)
    """Records that nobody can read, and why."""
    unstorable: list[SetAside] = field(default_factory=list)
    """Records that can be read and whose rows do not fit their tables, and why."""

    @property
    def nbytes(self) -> int:
        """Bytes that the tables hold."""
        return sum(rows.nbytes for _, rows in self.tables)


def unstorable(why: object) -> UnreadableRecord:
    """Why a record that can be read is in no table."""
    message = f"it is in the log, and was taken from there; ClickHouse alone lacks it: {why}"
    return UnreadableRecord(DeadLetterError.UNSTORABLE, message)


def convert(records: Iterable[LogRecord]) -> Batch:
    """``records`` as rows of their tables; what cannot be read, or does not fit, is set aside and stops nothing.

    Whatever is raised for one record is that record's: only running out of memory ends the process. Ordinary records
    go into columns directly (:mod:`ordinary`), any other is validated by its model.
    """
    records = list(records)
    try:
        return _convert(records, add_ordinary, alone=False)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a value of some record fits no column: it is found by halves
        if len(records) == 1:
            return convert_validated(records)
        middle = len(records) // 2
        return joined([convert(records[:middle]), convert(records[middle:])])


def convert_validated(records: Iterable[LogRecord]) -> Batch:
    """As :func:`convert`, and the judge of it: every record by envelope, model and rows that are tried alone."""
    return _convert(list(records), lambda record, into: False, alone=True)


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches that follow one another as one; each table is one contiguous block."""
    parts: dict[str, tuple[Table, list[pa.Table]]] = {}
    for batch in batches:
        for table, rows in batch.tables:
            parts.setdefault(table.name, (table, []))[1].append(rows)
    return Batch(
        [(table, pa.concat_tables(rows).combine_chunks()) for table, rows in parts.values()],
        [each for batch in batches for each in batch.unreadable],
        [each for batch in batches for each in batch.unstorable],
    )


class _RowsByTable(dict[str, TableRows]):
    """Made as they are asked for."""

    def __missing__(self, name: str) -> TableRows:
        always = EVENT_COLUMNS if name == tables.EVENTS.name else RECORD_COLUMNS
        self[name] = TableRows(tables.BY_NAME[name], always)
        return self[name]


def _convert(records: list[LogRecord], add: Callable[[LogRecord, _RowsByTable], bool], *, alone: bool) -> Batch:
    """``add`` takes a record or leaves it. ``alone``: whether rows that were validated are tried in their columns."""
    batch, by_table = Batch(), _RowsByTable()
    for record in records:
        try:
            added = add(record, by_table)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - it is of this record alone, and shows again below
            added = False
        if not added:
            for table, row in _validated_rows(record, batch, alone=alone):
                by_table[table.name].add_row(row)
    batch.tables.extend((rows.table, rows.to_arrow()) for rows in by_table.values())
    return batch


def _validated_rows(record: LogRecord, batch: Batch, *, alone: bool) -> list[tuple[Table, Row]]:
    """The rows of ``record``, which fit their tables if that was tried; none where it was set aside in ``batch``."""
    try:
        envelope, payload = decode(record.headers, record.value)
    except UnreadableRecord as error:
        batch.unreadable.append((record, error))
        return []
    try:
        rows = to_rows(envelope, payload, Place(record.partition, record.offset), record.value or b"")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is of this record alone
        batch.unstorable.append((record, unstorable(f"{type(error).__name__}: {error}")))
        return []
    if not alone:
        return rows
    try:
        for table, row in rows:
            arrow_table(table, [row])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Arrow raises types of its own and Python's
        batch.unstorable.append((record, unstorable(f"a value does not fit its column: {error}")))
        return []
    return rows
