"""Ranges are read from the archive whole, or not at all."""

from pathlib import Path

import pytest
from aiokafka import TopicPartition

from headrace.schemas.archive.archive import Archive, NotArchived
from headrace.schemas.archive.layout import path_of
from headrace.schemas.archive.segment import ArchivedRecord, LogPart, SegmentUnreadable, to_parquet
from headrace.schemas.objects.store import ObjectStore

ID = "a+b//c"
PLACE = TopicPartition("events", 1)


def record(offset: int) -> ArchivedRecord:
    return ArchivedRecord(PLACE.topic, PLACE.partition, offset, 1_000 + 10 * offset, b"k", b"v%d" % offset, ())


async def archive(folder: Path, *ranges: tuple[int, int], skipped: int = -1) -> Archive:
    """An archive with a segment for each range; the offset ``skipped`` is a transaction's mark."""
    store = ObjectStore(folder.as_uri())
    for first, stop in ranges:
        part = LogPart(PLACE.topic, ID, PLACE.partition, first, stop)
        file = to_parquet(part, [record(offset) for offset in range(first, stop) if offset != skipped])
        assert await store.create_if_absent(path_of(PLACE.topic, ID, PLACE.partition, first), file)
    return Archive(store, {PLACE.topic: ID})


async def offsets(found: Archive, start: int, stop: int) -> list[int]:
    return [each.offset async for records in found.read(PLACE, start, stop) for each in records]


async def test_a_range_is_read_across_segments(tmp_path: Path) -> None:
    found = await archive(tmp_path, (0, 5), (5, 6), (6, 20), skipped=5)
    assert await offsets(found, 3, 8) == [3, 4, 6, 7]
    assert await offsets(found, 0, 20) == [offset for offset in range(20) if offset != 5]
    assert await offsets(found, 4, 4) == []


async def test_a_range_with_a_gap_is_an_error_that_names_the_offset(tmp_path: Path) -> None:
    found = await archive(tmp_path, (10, 15), (18, 20))
    for start, missing in ((12, 15), (9, 9), (19, 20)):
        with pytest.raises(NotArchived, match=rf"events\[1\] no longer has offset {missing}, and .*--from"):
            await offsets(found, start, 25)


@pytest.mark.parametrize(
    ("ranges", "log_begin", "begin"),
    [
        ([(0, 5), (5, 9)], 7, 0),
        ([(0, 5), (5, 9)], 9, 0),
        ([(0, 5), (5, 9)], 10, 10),
        ([(0, 5), (6, 9)], 8, 6),
        ([(0, 5)], 0, 0),
        ([], 4, 4),
    ],
)
async def test_the_whole_begins_after_the_last_gap(
    tmp_path: Path, ranges: list[tuple[int, int]], log_begin: int, begin: int
) -> None:
    assert await (await archive(tmp_path, *ranges)).begin(PLACE, log_begin) == begin


async def test_records_are_found_by_their_places(tmp_path: Path) -> None:
    found = await archive(tmp_path, (0, 5), (5, 9), (12, 14), skipped=3)
    places = [(1, 2), (1, 3), (1, 8), (1, 10), (1, 13), (1, 99), (0, 2)]
    assert sorted(await found.at("events", places)) == [(1, 2), (1, 8), (1, 13)]
    assert (await found.at("events", [(1, 8)]))[1, 8] == record(8)


async def test_a_time_is_found_by_the_footers(tmp_path: Path) -> None:
    found = await archive(tmp_path, (0, 5), (5, 9))
    assert await found.first_not_older(PLACE, 0, 9, 1_000) == 0
    assert await found.first_not_older(PLACE, 0, 9, 1_061) == 7
    assert await found.first_not_older(PLACE, 2, 9, 1_000) == 2
    assert await found.first_not_older(PLACE, 0, 9, 9_999) is None


async def test_a_segment_that_was_renamed_is_refused(tmp_path: Path) -> None:
    found = await archive(tmp_path, (0, 5))
    here = tmp_path / path_of(PLACE.topic, ID, PLACE.partition, 0)
    here.rename(tmp_path / path_of(PLACE.topic, ID, PLACE.partition, 7))
    with pytest.raises(SegmentUnreadable, match="moved or renamed"):
        await offsets(found, 7, 9)


async def test_another_topic_of_that_name_has_another_archive(tmp_path: Path) -> None:
    await archive(tmp_path, (0, 5))
    assert await Archive(ObjectStore(tmp_path.as_uri()), {PLACE.topic: "new"}).segments(PLACE) == []
    assert await Archive(ObjectStore(tmp_path.as_uri()), {}).segments(PLACE) == []
