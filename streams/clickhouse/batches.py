"""Converts records of one partition into Arrow tables. Pure: a repeated batch is converted identically."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import MODELS, TYPES
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.clickhouse.columns import Row, Table, arrow_table
from headrace.streams.clickhouse.direct_columns import add_ordinary
from headrace.streams.clickhouse.rows import RowOrigin, logged_ms, to_rows
from headrace.streams.clickhouse.rows_by_table import RowsByTable
from headrace.streams.raw import LogRecord

RecordWithoutRow: TypeAlias = tuple[LogRecord, UnreadableRecord]
"""A record that has no row, with the reason."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A converted batch."""

    tables: list[tuple[Table, pa.Table]] = field(default_factory=list)
    """Rows by table, in the records' order."""
    unreadable: list[RecordWithoutRow] = field(default_factory=list)
    """Records that cannot be decoded, with the error."""
    unstorable: list[RecordWithoutRow] = field(default_factory=list)
    """Records that can be decoded but whose rows do not fit their tables, with the error."""

    @property
    def nbytes(self) -> int:
        """Size of the tables in bytes."""
        return sum(rows.nbytes for _, rows in self.tables)


def unstorable(why: object) -> UnreadableRecord:
    """Returns the error of a readable record that is in no table."""
    message = f"it is in Kafka and the processors have processed it; only ClickHouse lacks it: {why}"
    return UnreadableRecord(DeadLetterError.UNSTORABLE, message)


def convert(records: Iterable[LogRecord]) -> RowBatch:
    """Convert ``records`` into rows of their tables. Records that cannot be decoded, or do not fit, are set apart.

    An exception affects only its record; only running out of memory ends the process. The extension module appends
    plain events to columns (:mod:`event_rows`); of the other records, ordinary ones go into columns without their model
    (:mod:`ordinary`), and the rest are validated by their models.
    """
    records = list(records)
    try:
        return _convert(records, RowsByTable(), add_ordinary, alone=False)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a value of some record fits no column: find it by bisection
        if len(records) == 1:
            return convert_validated(records)
        middle = len(records) // 2
        return joined([convert(records[:middle]), convert(records[middle:])])


def convert_validated(records: Iterable[LogRecord]) -> RowBatch:
    """As :func:`convert`, but validates every record by envelope and model and tries its rows alone: the reference."""
    return _convert(list(records), RowsByTable(by_models=True), lambda record, into: False, alone=True)


def joined(batches: Sequence[RowBatch]) -> RowBatch:
    """Concatenate consecutive batches; each table becomes one contiguous block."""
    parts: dict[str, tuple[Table, list[pa.Table]]] = {}
    for batch in batches:
        for table, rows in batch.tables:
            parts.setdefault(table.name, (table, []))[1].append(rows)
    return RowBatch(
        [(table, pa.concat_tables(rows).combine_chunks()) for table, rows in parts.values()],
        [each for batch in batches for each in batch.unreadable],
        [each for batch in batches for each in batch.unstorable],
    )


def _convert(
    records: list[LogRecord], by_table: RowsByTable, add: Callable[[LogRecord, RowsByTable], bool], *, alone: bool
) -> RowBatch:
    """Convert records into ``by_table``: plain events by the extension module, others with ``add``, which may decline
    one. ``alone``: try each validated row in its columns.
    """
    batch, at = RowBatch(), 0
    while (at := by_table.take(records, at)) < len(records):
        record = records[at]
        at += 1
        try:
            added = add(record, by_table)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - affects only this record, and is raised again below
            added = False
        if not added:
            for table, row in _validated_rows(record, batch, alone=alone):
                by_table[table.name].add_row(row)
    batch.tables.extend((rows.table, rows.to_arrow()) for rows in by_table.values())
    return batch


def _check_topic(type_name: str, topic: str) -> None:
    """Raise ``UnreadableRecord`` for a type that ``topic`` does not hold: who may write one topic, such as `sdk-stats`,
    must not be able to replace rows of another one.
    """
    if type_name not in TYPES.get(topic, MODELS):
        raise UnreadableRecord(DeadLetterError.UNKNOWN_TYPE, f"{type_name} does not belong in the topic {topic}")


def _validated_rows(record: LogRecord, batch: RowBatch, *, alone: bool) -> list[tuple[Table, Row]]:
    """Returns the rows of ``record``; none if it was added to the errors of ``batch``."""
    try:
        envelope, payload = decode(record.headers, record.value)
        _check_topic(payload.TYPE, record.topic)
    except UnreadableRecord as error:
        batch.unreadable.append((record, error))
        return []
    try:
        place = RowOrigin(record.partition, record.offset, logged_ms(record.timestamp, envelope.time_ms))
        rows = to_rows(envelope, payload, place, record.value or b"")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - affects only this record
        batch.unstorable.append((record, unstorable(f"{type(error).__name__}: {error}")))
        return []
    if not alone:
        return rows
    try:
        for table, row in rows:
            arrow_table(table, [row])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Arrow raises its own and Python's exceptions
        batch.unstorable.append((record, unstorable(f"a value does not fit its column: {error}")))
        return []
    return rows
