"""A batch that is read again is cut where it was cut before."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.clickhouse.cuts import Pending, announced_cut, cut_metadata, deduplication_token, next_cut
from headrace.streams.clickhouse.tables import EVENTS
from headrace.streams.raw import StoredRecord

offsets = st.integers(0, 10_000)
sizes = st.integers(1, 500)


def record(offset: int) -> StoredRecord:
    return StoredRecord("events", 0, offset, 0, None, b"12345", [])


def test_a_full_batch_ends_at_a_multiple_of_the_size() -> None:
    assert next_cut(0, 100, size=100) == 100
    assert next_cut(30, 250, size=100) == 100
    assert next_cut(100, 250, size=100) == 200


def test_a_batch_that_is_not_full_waits_unless_it_is_cut_early() -> None:
    assert next_cut(30, 60, size=100) is None
    assert next_cut(30, 60, size=100, early=True) == 60
    assert next_cut(30, 30, size=100, early=True) is None


def test_an_announced_cut_wins_over_both_rules() -> None:
    assert next_cut(30, 250, size=100, announced=47) == 47
    assert next_cut(30, 40, size=100, announced=47, early=True) is None
    assert next_cut(30, 250, size=100, announced=30) == 100


@given(first=offsets, read_to=offsets, size=sizes, early=st.booleans())
def test_a_cut_lies_inside_what_was_read(first: int, read_to: int, size: int, early: bool) -> None:
    cut = next_cut(first, read_to, size=size, early=early)
    assert cut is None or first < cut <= read_to


@given(first=offsets, grown=st.integers(1, 2000), more=st.integers(0, 2000), size=sizes)
def test_a_restart_cuts_the_same_batch_however_much_more_it_reads(first: int, grown: int, more: int, size: int) -> None:
    cut = next_cut(first, first + grown, size=size, early=True)
    assert cut is not None
    announced = announced_cut(cut_metadata(cut))
    assert next_cut(first, first + grown + more, size=size, announced=announced) == cut


def test_other_metadata_announces_nothing() -> None:
    assert announced_cut("") is None
    assert announced_cut("cut=") is None
    assert announced_cut("cut=-3") is None
    assert announced_cut('{"next": 3}') is None


def test_a_token_names_topic_partition_offsets_and_table() -> None:
    assert deduplication_token("events", 2, 7104, 8000, EVENTS) == "events:2:7104-7999:events"


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), sizes, st.randoms())
def test_whatever_the_reads_every_record_is_taken_once_and_in_order(gaps: list[int], size: int, random: object) -> None:
    offsets, position = [], 0
    for gap in gaps:  # gaps are transaction markers and aborted records
        position += gap
        offsets.append(position)
    pending, taken = Pending(first=0), []
    for offset in offsets:
        pending.add([record(offset)], now=0.0)
        early = random.random() < 0.3  # type: ignore[attr-defined]
        while (end := pending.cut(size, early=early)) is not None:
            taken += [one.offset for one in pending.take(end)]
    while (end := pending.cut(size, early=True)) is not None:
        taken += [one.offset for one in pending.take(end)]
    assert taken == offsets
    assert pending.size == 0


def test_the_age_of_a_batch_is_that_of_its_first_record() -> None:
    pending = Pending(first=0)
    pending.add([record(0)], now=5.0)
    pending.add([record(1)], now=9.0)
    assert (pending.since, pending.size) == (5.0, 10)
    pending.take(2)
    pending.add([record(2)], now=11.0)
    assert pending.since == 11.0


def test_whatever_of_a_record_takes_room_is_counted() -> None:
    pending = Pending(0)
    pending.add([StoredRecord("events", 0, 0, 0, b"key", b"value", [("name", b"content"), ("null", None)])], 1.0)
    assert pending.size == len(b"keyvaluenamecontentnull")
    pending.take(1)
    assert pending.size == 0
