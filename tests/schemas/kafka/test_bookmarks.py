"""Resuming from bookmarks: every record once across any number of readers, and never from a different log."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.kafka.bookmarks import BookmarkedReader, LogReplacedError, Read, bookmark, cluster_id
from headrace.schemas.topics import EVENTS, STEPS, Topic
from headrace.streams.raw import StoredRecord

Log = dict[str, dict[int, list[StoredRecord]]]
WRITES = st.lists(st.tuples(st.sampled_from([EVENTS.name, STEPS.name]), st.integers(0, 2)), max_size=20)


def write(log: Log, topic: str, partition: int, value: bytes | None = None) -> None:
    records = log.setdefault(topic, {}).setdefault(partition, [])
    # Transaction markers take offsets without a record.
    offset = records[-1].offset + 2 if records else 1
    records.append(StoredRecord(topic, partition, offset, 7, b"k", value or b"%d" % offset, [("h", b"v")]))


def read_of(log: Log) -> Read[StoredRecord]:
    async def read(topic: Topic, start: Mapping[int, int]) -> AsyncIterator[StoredRecord]:
        for partition, records in log.get(topic.name, {}).items():
            for record in records:
                if record.offset >= start.get(partition, 0):
                    yield record

    return read


async def taken(reader: BookmarkedReader[StoredRecord]) -> list[StoredRecord]:
    return [record for topic in (EVENTS, STEPS) async for record in reader.unread(topic)]


@given(st.lists(st.tuples(WRITES, st.booleans()), max_size=6))
async def test_every_record_is_read_once_across_readers(rounds: list[tuple[list[tuple[str, int]], bool]]) -> None:
    log: Log = {}
    reader = BookmarkedReader(read_of(log))
    found: list[StoredRecord] = []
    for writes, is_replaced in rounds:
        for topic, partition in writes:
            write(log, topic, partition)
        if is_replaced:
            reader = BookmarkedReader(read_of(log), reader.marks)
        found += await taken(reader)
    place = lambda record: (record.topic, record.partition, record.offset)  # noqa: E731
    every = [record for partitions in log.values() for records in partitions.values() for record in records]
    assert sorted(found, key=place) == sorted(every, key=place)


@pytest.mark.parametrize("change", ["value", "key", "headers", "timestamp", "offset"])
async def test_a_different_record_at_the_bookmark_is_detected(change: str) -> None:
    log: Log = {}
    for _ in range(3):
        write(log, EVENTS.name, 0)
    reader = BookmarkedReader(read_of(log))
    await taken(reader)
    other = {"value": None, "key": b"", "headers": [("h", None)], "timestamp": 8, "offset": 6}[change]
    log[EVENTS.name][0][-1] = replace(log[EVENTS.name][0][-1], **{change: other})
    write(log, EVENTS.name, 0)
    with pytest.raises(LogReplacedError, match=r"events\[0\]"):
        await taken(BookmarkedReader(read_of(log), reader.marks))


@pytest.mark.parametrize("left", [0, 1])
async def test_a_truncated_topic_is_detected(left: int) -> None:
    log: Log = {}
    for _ in range(3):
        write(log, EVENTS.name, 1)
    reader = BookmarkedReader(read_of(log))
    await taken(reader)
    del log[EVENTS.name][1][left:]
    with pytest.raises(LogReplacedError, match=r"events\[1\]"):
        await taken(BookmarkedReader(read_of(log), reader.marks))


async def test_a_record_counts_as_read_when_the_next_is_requested() -> None:
    log: Log = {}
    for _ in range(3):
        write(log, EVENTS.name, 0)
    reader = BookmarkedReader(read_of(log))
    records = reader.unread(EVENTS)
    await anext(records)
    second = await anext(records)
    await records.aclose()
    assert reader.positions == {EVENTS.name: {0: second.offset - 1}}
    assert reader.marks == {EVENTS.name: {0: bookmark(log[EVENTS.name][0][0])}}
    assert next(iter(await taken(reader))) == second


@pytest.mark.kafka
async def test_the_cluster_id_is_stable(kafka: str) -> None:
    found = await cluster_id(kafka)
    assert found
    assert await cluster_id(kafka) == found
