"""A batch that is read again is cut at the same offsets."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.clickhouse.cuts import CommitMetadata, deduplication_token, next_cut, resumed_cut
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
    announced = CommitMetadata.parse(str(CommitMetadata("Zk0dPQ2wT8mAlBZc8sJ6jg", cut))).cut
    assert next_cut(first, first + grown + more, size=size, announced=announced) == cut


@given(topic_id=st.from_regex(r"[A-Za-z0-9_=-]*", fullmatch=True), cut=st.none() | offsets)
def test_metadata_is_parsed_as_it_was_written(topic_id: str, cut: int | None) -> None:
    for first in (None, 0, 790):
        assert CommitMetadata.parse(str(CommitMetadata(topic_id, cut, first))) == (topic_id, cut, first)


def test_other_metadata_announces_nothing() -> None:
    assert CommitMetadata.parse("cut=812") == ("", 812, None), "of an older release"
    for text in ("", "cut=", "cut=-3", '{"next": 3}'):
        assert CommitMetadata.parse(text) == ("", None, None)


def test_a_token_names_topic_partition_offsets_and_table() -> None:
    assert deduplication_token("events", "Zk0", 2, 7104, 8000, EVENTS) == "events:Zk0:2:7104-7999:events"


def test_an_announced_batch_is_repeated_if_the_log_holds_its_end() -> None:
    assert resumed_cut(47, 30, 0, 100) == 47
    assert resumed_cut(47, 30, 30, 47) == 47
    assert resumed_cut(47, 30, 35, 100) == 47, "its first records expired"
    assert resumed_cut(47, 30, 47, 100) is None, "all of its records expired"
    assert resumed_cut(47, 30, 0, 46) is None, "the log lost records"
    assert resumed_cut(1005, 905, 0, 5) is None, "the log lost records"
    assert resumed_cut(30, 30, 0, 100) is None
    assert resumed_cut(None, -1, 0, 100) is None
