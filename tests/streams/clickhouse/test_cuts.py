"""A batch that is read again is cut at the same offsets."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.clickhouse.cuts import announced_cut, cut_metadata, deduplication_token, next_cut
from headrace.streams.clickhouse.tables import EVENTS

offsets = st.integers(0, 10_000)
sizes = st.integers(1, 500)


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
def test_a_restart_that_reads_more_cuts_the_same_batch(first: int, grown: int, more: int, size: int) -> None:
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
