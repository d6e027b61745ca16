"""Records read from a partition are taken once, in order, and in the same batches after a restart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.clickhouse import pending as pending_module
from headrace.streams.clickhouse.batches import RowBatch, convert, joined
from headrace.streams.clickhouse.pending import (
    BACKLOG_LINGERS,
    BACKLOG_RECORDS,
    CHUNK_BYTES,
    CHUNK_RECORDS,
    Pending,
    TakenBatch,
)
from headrace.streams.raw import LogRecord, StoredRecord
from tests.streams.clickhouse.test_sink import event, stored

sizes = st.integers(1, 50)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_module, "CHUNK_RECORDS", 3)


def record(offset: int) -> LogRecord:
    return stored(event("t", offset), offset)


def converted(pending: Pending) -> None:
    while chunk := pending.chunk():
        pending.put(chunk, convert(chunk))


def offsets_in(batch: RowBatch) -> list[int]:
    return [offset for _, rows in batch.tables for offset in rows.column("offset").to_pylist()]


def read_and_take(
    pending: Pending, reads: list[list[int]], early: list[bool], convert_before: list[bool]
) -> list[tuple[int, int, list[int]]]:
    """First offset, end and records of every batch that is taken."""
    found: list[TakenBatch] = []
    for offsets, cut_early, first_convert in zip(reads, early, convert_before, strict=True):
        if offsets:
            pending.add([record(offset) for offset in offsets], now=0.0)
        if first_convert:
            converted(pending)
        while (end := pending.cut(early=cut_early)) is not None:
            found.append(pending.take(end))
    return [(taken.first, taken.end, offsets_in(taken.rows())) for taken in found]


@given(data=st.data(), gaps=st.lists(st.integers(1, 12), min_size=1, max_size=40), size=sizes)
def test_every_record_is_taken_once_and_in_order_for_any_reads(data: Any, gaps: list[int], size: int) -> None:
    offsets, position = [], 0
    for gap in gaps:  # gaps are transaction markers and aborted records
        position += gap
        offsets.append(position)
    reads, left = [], list(offsets)
    while left:
        many = data.draw(st.integers(1, len(left)))
        reads.append(left[:many])
        left = left[many:]
    flags = st.lists(st.booleans(), min_size=len(reads) + 1, max_size=len(reads) + 1)
    pending = Pending(0, size)
    taken = read_and_take(pending, [*reads, []], [*data.draw(flags)[1:], True], data.draw(flags))
    assert [offset for _, _, batch in taken for offset in batch] == offsets
    assert all(first <= offset < end for first, end, batch in taken for offset in batch)
    assert [first for first, _, _ in taken] == [0, *(end for _, end, _ in taken[:-1])]
    assert (pending.size, pending.is_empty) == (0, True)


@given(first=st.integers(0, 100), grown=st.integers(1, 60), read=st.integers(1, 60), size=sizes)
def test_records_that_are_read_again_have_the_same_rows(first: int, grown: int, read: int, size: int) -> None:
    records = [record(offset) for offset in range(first, first + grown)]
    died = Pending(first, size)
    died.add(records, now=0.0)
    converted(died)
    end = died.cut(early=True)
    assert end is not None
    rows = died.take(end).rows()
    again = records[: end - first]
    repeated = joined([convert(again[at : at + read]) for at in range(0, len(again), read)])
    (table, found), (other_table, other) = rows.tables[0], repeated.tables[0]
    assert (table.name, other_table.name, len(rows.tables), len(repeated.tables)) == ("events", "events", 1, 1)
    assert found.equals(other)
    assert all(found.column("id_sent").num_chunks == 1 for _, found in repeated.tables)


def test_the_age_of_a_batch_is_that_of_its_first_record() -> None:
    pending = Pending(0, 100)
    pending.add([record(0)], now=5.0)
    pending.add([record(1)], now=9.0)
    assert pending.since == 5.0
    pending.take(2)
    pending.add([record(2)], now=11.0)
    assert pending.since == 11.0


def test_the_rest_of_a_read_has_the_age_of_the_read() -> None:
    pending = Pending(0, 2)
    pending.add([record(0)], now=5.0)
    pending.add([record(1), record(2)], now=9.0)
    pending.take(2)
    assert pending.since == 9.0


def test_a_batch_of_a_backlog_waits_longer_to_be_full() -> None:
    pending = Pending(100, 65_536)
    pending.add([record(100)], now=5.0)
    assert pending.is_behind(101 + BACKLOG_RECORDS)
    assert not pending.is_behind(101 + BACKLOG_RECORDS - 1)
    assert pending.is_due(5.0, 0.5, 100 + BACKLOG_RECORDS), "the first batch of a backlog, whether all of it is read"
    for reached in (None, 101, 100 + BACKLOG_RECORDS - 1):
        assert not pending.is_behind(reached)
        assert not pending.is_due(5.4, 0.5, reached)
        assert pending.is_due(5.5, 0.5, reached)
    pending.backlog_lingers = BACKLOG_LINGERS
    late = 5.0 + 0.5 * (BACKLOG_LINGERS - 1)
    pending.add([record(101)], now=late)
    assert not pending.is_due(late, 0.5, 102 + BACKLOG_RECORDS)
    assert pending.is_due(5.0 + 0.5 * BACKLOG_LINGERS, 0.5, 102 + BACKLOG_RECORDS)


@given(linger_s=st.floats(0.1, 10), killed_s=st.floats(0, 1000))
def test_a_process_that_is_killed_has_written_about_half_of_what_it_read_of_a_backlog(
    linger_s: float, killed_s: float
) -> None:
    """The first batch is written at once; then each grows to what all before it took, up to the longest linger."""
    pending, now, written_s, step_s = Pending(0, 10**9), 0.0, 0.0, linger_s / 10
    offset = 0
    while now <= killed_s and now < 100 * linger_s:
        pending.add([record(offset)], now)
        offset += 1
        if pending.is_due(now, linger_s, offset + BACKLOG_RECORDS):
            pending.take(offset)
            written_s = now
        now += step_s
    lost_s = now - step_s - written_s
    assert lost_s <= written_s + linger_s + 2 * step_s
    assert lost_s <= BACKLOG_LINGERS * linger_s + 2 * step_s


def test_a_batch_does_not_wait_for_a_backlog_of_which_nothing_can_be_read() -> None:
    pending = Pending(100, 65_536)
    pending.backlog_lingers = 1
    pending.add([record(100)], now=5.0)
    assert not pending.is_due(5.4, 0.5, 101 + BACKLOG_RECORDS), "records of an open transaction are in front of the end"
    assert pending.is_due(5.5, 0.5, 101 + BACKLOG_RECORDS)


def test_record_bytes_and_later_column_bytes_are_counted() -> None:
    pending = Pending(0, 100)
    pending.add([StoredRecord("events", 0, 0, 0, b"key", b"value" * 9, [("name", b"content"), ("null", None)])], 1.0)
    assert pending.size == len(b"key" + b"value" * 9 + b"namecontentnull")
    pending.add([record(1), record(2)], 1.0)
    before = pending.size
    converted(pending)
    assert 0 < pending.size < before
    taken = pending.take(3)
    assert taken.size == sum(chunk.batch.nbytes for chunk in taken.chunks) > 0
    assert pending.size == 0


@given(
    steps=st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12),
    size=st.integers(1, 12),
)
def test_the_size_is_that_of_what_is_held_whenever_it_is_read(
    steps: list[tuple[int, bool, bool, bool]], size: int
) -> None:
    pending, offset, added, taken = Pending(0, size), 0, 0, 0
    for count, reads_size, converts, takes in steps:
        records = [event_of_bytes(number) for number in range(offset, offset + count)]
        pending.add(records, now=0.0)
        offset, added = offset + count, added + sum(map(bytes_of, records))
        if reads_size:
            assert pending.size == added - taken
        if converts and (chunk := pending.chunk()):
            pending.put(chunk, RowBatch())
            taken += sum(map(bytes_of, chunk))
        if takes and (end := pending.cut(early=reads_size)) is not None:
            batch = pending.take(end)
            assert batch.size == sum(map(bytes_of, batch.records))
            taken += batch.size
    assert pending.size == added - taken


def event_of_bytes(offset: int) -> LogRecord:
    return StoredRecord("events", 0, offset, 0, b"k" * (offset % 3), b"v" * (offset * 7 % 11), [("n", b"c" * offset)])


def bytes_of(record: LogRecord) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(len(n) + len(c or b"") for n, c in record.headers)


def test_a_few_large_records_are_converted_too() -> None:
    pending = Pending(0, 100)
    pending.add([StoredRecord("events", 0, 0, 0, None, b"x" * CHUNK_BYTES, [])], 1.0)
    assert len(pending.chunk()) == 1 < CHUNK_RECORDS
