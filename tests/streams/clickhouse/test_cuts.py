"""Records that are inserted together, and announcements by which an insert is repeated."""

import pyarrow as pa
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.clickhouse.cuts import (
    MOST_PARTITIONS,
    CommitMetadata,
    InsertRange,
    PlannedInsert,
    next_cut,
    planned,
    repeatable_end,
)
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


@given(first=offsets, read_to=offsets, size=sizes, early=st.booleans())
def test_a_cut_lies_inside_what_was_read(first: int, read_to: int, size: int, early: bool) -> None:
    cut = next_cut(first, read_to, size=size, early=early)
    assert cut is None or first < cut <= read_to


@st.composite
def ranges_of(draw: st.DrawFn) -> tuple[InsertRange, ...]:
    partitions = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=MOST_PARTITIONS)))
    firsts = draw(st.lists(st.integers(0, 2**62), min_size=len(partitions), max_size=len(partitions)))
    return tuple(
        InsertRange(partition, first, first + draw(sizes)) for partition, first in zip(partitions, firsts, strict=True)
    )


@given(topic_id=st.from_regex(r"[A-Za-z0-9_-]*", fullmatch=True), ranges=st.just(()) | ranges_of())
def test_metadata_is_parsed_as_it_was_written(topic_id: str, ranges: tuple[InsertRange, ...]) -> None:
    text = str(CommitMetadata(topic_id, ranges))
    assert CommitMetadata.parse(text) == (topic_id, ranges)
    assert len(text) < 4096, "the broker's bound, offset.metadata.max.bytes"


def test_other_metadata_announces_nothing() -> None:
    assert CommitMetadata.parse("topic=Zk0 cut=812 first=790") == ("Zk0", ()), "of an older release"
    broken = ("inserts=", "inserts=0:9-3", "inserts=0:1-2,", "inserts=0:1-2,x", "inserts=-1:1-2", '{"next": 3}', "")
    assert {CommitMetadata.parse(text) for text in broken} == {("", ())}


def test_a_token_names_topic_partitions_offsets_and_table() -> None:
    insert = PlannedInsert("events", "Zk0", (InsertRange(0, 790, 812), InsertRange(2, 7104, 8000)))
    assert insert.token(EVENTS) == "events:Zk0:0:790-811,2:7104-7999:events"
    assert (insert.places, insert.end(insert.places[1])) == ([("events", 0), ("events", 2)], 8000)


@given(
    read=st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["events", "rewards", "steps"]), st.integers(0, 200)),
        st.tuples(offsets, sizes),
        max_size=200,
    ),
    most=sizes,
)
def test_every_partition_is_in_one_insert_of_its_topic_and_inserts_are_bounded(
    read: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    ends = {place: (first, first + count) for place, (first, count) in read.items()}
    inserts = planned(ends, {place: place.topic[0] for place in ends}, most)
    written = {insert.place(each.partition): each[1:] for insert in inserts for each in insert.ranges}
    assert written == ends
    assert sum(len(insert.ranges) for insert in inserts) == len(ends)
    counts = [sum(end - first for _, first, end in insert.ranges) for insert in inserts]
    assert counts == sorted(counts)
    for insert, count in zip(inserts, counts, strict=True):
        assert insert.topic_id == insert.topic[0]
        assert list(insert.ranges) == sorted(insert.ranges)
        assert len(insert.ranges) == 1 or (count <= most and len(insert.ranges) <= MOST_PARTITIONS)


def test_small_batches_of_a_topic_are_one_insert() -> None:
    places = [TopicPartition(topic, partition) for topic in ("events", "rewards") for partition in range(4)]
    inserts = planned(dict.fromkeys(places, (10, 30)), {place: place.topic[0] for place in places}, 1_000)
    assert [(insert.topic, len(insert.ranges)) for insert in inserts] == [("events", 4), ("rewards", 4)]


def test_an_announced_range_is_repeated_if_the_log_holds_its_end() -> None:
    ranges = (InsertRange(1, 30, 47), InsertRange(4, 905, 1005))
    assert repeatable_end(ranges, 1, 30, 0, 100) == 47
    assert repeatable_end(ranges, 4, 905, 0, 1005) == 1005
    assert repeatable_end(ranges, 1, 30, 30, 47) == 47
    assert repeatable_end(ranges, 1, 30, 35, 100) == 47, "its first records expired"
    assert repeatable_end(ranges, 1, 35, 35, 100) == 47, "and that was reported"
    assert repeatable_end(ranges, 1, 30, 47, 100) is None, "all of its records expired"
    assert repeatable_end(ranges, 1, 30, 0, 46) is None, "the log lost records"
    assert repeatable_end(ranges, 4, 905, 0, 5) is None, "the log lost records"
    assert repeatable_end(ranges, 1, 47, 0, 100) is None, "it was committed"
    assert repeatable_end(ranges, 1, -1, 0, 100) is None, "nothing was committed"
    assert repeatable_end(ranges, 2, 30, 0, 100) is None
    assert repeatable_end((), 1, 30, 0, 100) is None


small_ranges = st.dictionaries(st.integers(0, 20), st.tuples(offsets, st.integers(1, 40)), min_size=1, max_size=6)


@given(read=small_ranges, data=st.data())
def test_an_insert_is_halved_to_single_offsets_and_the_same_whichever_records_expired(
    read: dict[int, tuple[int, int]], data: st.DataObject
) -> None:
    ranges = tuple(InsertRange(partition, first, first + count) for partition, (first, count) in sorted(read.items()))
    records = [(each.partition, offset) for each in ranges for offset in range(each.first, each.end)]
    kept = data.draw(st.lists(st.sampled_from(records), unique=True).map(sorted))
    rows = pa.table({"partition": [each for each, _ in kept], "offset": [each for _, each in kept]})
    left, single = [(PlannedInsert("events", "Zk0", ranges), rows)], list[tuple[int, int]]()
    while left:
        insert, some = left.pop()
        if halves := insert.halves():
            assert insert.ranges != halves[0].ranges != halves[1].ranges
            left += [(half, half.rows_of(some)) for half in halves]
        else:
            (alone,) = insert.ranges
            single.append(alone[:2])
            found = list(zip(some["partition"].to_pylist(), some["offset"].to_pylist(), strict=True))
            assert found == [alone[:2]] * (alone[:2] in kept)
    assert sorted(single) == records
