"""The rule for records that retention deletes before they are read, and the consumer that follows it."""

import logging
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.kafka import expired
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import ExpiredCounts, ExpiredRange, expired_range, report_expired, skip_expired
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES
from tests.expired import delete_before

PLACE = TopicPartition(FEEDBACK.name, 1)
OFFSETS = st.integers(min_value=0, max_value=200)


@given(st.one_of(st.none(), st.integers(min_value=-2, max_value=200)), OFFSETS)
def test_offsets_from_the_position_to_the_log_start_have_expired(position: int | None, begin: int) -> None:
    found = expired_range(PLACE, position, begin)
    lost = set() if position is None or position < 0 else set(range(position, begin))
    assert lost == (set(range(found.position, found.begin)) if found else set())
    assert found is None or (found.offsets == len(lost) > 0 and found.place == PLACE)


def test_a_single_offset_after_the_last_record_of_a_transaction_is_its_marker() -> None:
    place = TopicPartition(TRAJECTORIES.name, 1)
    assert expired_range(place, 3, 4) is None
    assert expired_range(place, 3, 5) == (place, 3, 5)


@given(st.lists(st.tuples(OFFSETS, OFFSETS), max_size=8))
def test_an_offset_is_counted_once_however_often_it_is_found(found: list[tuple[int, int]]) -> None:
    """A reader's positions and log starts only grow, unless it starts again from an earlier position."""
    counts, lost = ExpiredCounts(), set[int]()
    begin = 0
    for position, step in found:
        begin = max(begin, step)
        if (each := expired_range(PLACE, position, begin)) is not None:
            before = len(lost)
            lost |= set(range(max(position, max(lost, default=-1) + 1), begin))
            assert counts.add("a", each) == len(lost) - before
    assert counts.by_partition.get(("a", *PLACE), 0) == len(lost)
    assert "b" not in {reader for reader, *_ in counts.by_partition}


def test_the_message_names_the_place_the_offsets_and_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    lost = ExpiredRange(PLACE, 1200, 4000)
    assert report_expired("test-message", lost)
    assert not report_expired("test-message", lost), "it was reported already"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    text = caplog.text
    for part in (
        "test-message: ",
        "feedback[1] starts at 4000",
        "from 1200 on",
        "2,800 offsets",
        "retention.ms of feedb",
    ):
        assert part in text
    assert expired.EXPIRED.by_partition["test-message", FEEDBACK.name, 1] == 2800


async def write(bootstrap: str, count: int, place: TopicPartition = PLACE) -> list[int]:
    """Returns the offsets of the new records."""
    async with open_producer(bootstrap) as producer:
        return [
            (await (await producer.send(place.topic, b"x", partition=place.partition))).offset for _ in range(count)
        ]


async def read(consumer: ReportingConsumer, last: int) -> list[int]:
    """Returns the offsets up to ``last``."""
    offsets: list[int] = []
    while not offsets or offsets[-1] < last:
        batches: dict[TopicPartition, list[KafkaRecord]] = await consumer.getmany(timeout_ms=200)
        offsets += [record.offset for records in batches.values() for record in records]
    return offsets


@pytest.mark.kafka
@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_a_committed_offset_that_has_expired_is_reported_and_reading_continues_at_the_log_start(
    kafka: str, reset: str
) -> None:
    """Also with ``latest``, which in aiokafka would skip everything in the log."""
    written = await write(kafka, 10)
    async with open_consumer(kafka, group=f"expired-{reset}") as consumer:
        consumer.assign([PLACE])
        await consumer.commit({PLACE: written[2]})
    await delete_before(kafka, PLACE, written[6])
    found: list[ExpiredRange] = []
    options: dict[str, Any] = {"group": f"expired-{reset}", "auto_offset_reset": reset, "on_expired": found.append}
    async with open_consumer(kafka, [FEEDBACK], **options) as consumer:
        assert [each for each in await read(consumer, written[-1]) if each in written] == written[6:]
    assert found == [ExpiredRange(PLACE, written[2], written[6])]


@pytest.mark.kafka
async def test_records_that_expire_while_they_are_read_are_reported_once(kafka: str) -> None:
    written = await write(kafka, 4)
    found: list[ExpiredRange] = []
    async with open_consumer(kafka, on_expired=found.append) as consumer:
        consumer.assign([PLACE])
        consumer.seek(PLACE, written[0])
        assert await read(consumer, written[-1]) == written
        consumer.pause(PLACE)  # else the client fetches the next ones before they are deleted
        more = await write(kafka, 10)
        await delete_before(kafka, PLACE, more[7])
        consumer.resume(PLACE)
        assert await read(consumer, more[-1]) == more[7:]
    assert found == [ExpiredRange(PLACE, more[0], more[7])]


@pytest.mark.kafka
async def test_transaction_markers_and_aborted_records_are_not_losses(kafka: str) -> None:
    found: list[ExpiredRange] = []
    (first,) = await write(kafka, 1)
    async with open_producer(kafka, transactional_id="not-lost") as producer:
        for undone in (False, True, False):
            await producer.begin_transaction()
            await (await producer.send(FEEDBACK.name, b"x", partition=PLACE.partition))
            await (producer.abort_transaction() if undone else producer.commit_transaction())
    async with open_consumer(kafka, on_expired=found.append) as consumer:
        consumer.assign([PLACE])
        consumer.seek(PLACE, first)
        assert await read(consumer, first + 5) == [first, first + 1, first + 5]
        # A log start in the middle of what was read already takes nothing away.
        await delete_before(kafka, PLACE, first + 4)
        (last,) = await write(kafka, 1)
        assert await read(consumer, last) == [last]
    assert found == []


@pytest.mark.kafka
async def test_a_group_without_a_commit_starts_as_configured_and_loses_nothing(kafka: str) -> None:
    written = await write(kafka, 3)
    await delete_before(kafka, PLACE, written[1])
    found: list[ExpiredRange] = []
    async with open_consumer(kafka, [FEEDBACK], group="first-start", on_expired=found.append) as consumer:
        assert written[1:] == [each for each in await read(consumer, written[-1]) if each in written]
    group: dict[str, Any] = {"group": "new", "auto_offset_reset": "latest", "on_expired": found.append}
    async with open_consumer(kafka, [FEEDBACK], **group) as consumer:
        while PLACE not in consumer.assignment():
            await consumer.getmany(timeout_ms=100)
        for _ in range(10):
            assert not await consumer.getmany(timeout_ms=100)
        (new,) = await write(kafka, 1)
        assert await read(consumer, new) == [new]
    assert found == []


@pytest.mark.kafka
async def test_a_position_behind_the_log_end_is_read_from_the_log_start(
    kafka: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As after the topic was recreated: nothing has expired."""
    written = await write(kafka, 3)
    found: list[ExpiredRange] = []
    async with open_consumer(kafka, on_expired=found.append) as consumer:
        consumer.assign([PLACE])
        consumer.seek(PLACE, written[-1] + 1000)
        assert (await read(consumer, written[-1]))[-3:] == written
    assert found == []
    assert "feedback[1] ends at" in caplog.text


@pytest.mark.kafka
async def test_a_scan_from_an_expired_offset_reports_it(kafka: str) -> None:
    """Also of a reader that continues where an earlier scan ended, as `headrace ledger --follow`."""
    written = await write(kafka, 5)
    await delete_before(kafka, PLACE, written[3])
    found: list[ExpiredRange] = []
    for on_expired in (found.append, skip_expired):
        reading = read_to_end(kafka, FEEDBACK, start={PLACE.partition: written[1]}, on_expired=on_expired)
        offsets = [record.offset async for record in reading if record.partition == PLACE.partition]
        assert offsets == written[3:]
        assert found == [ExpiredRange(PLACE, written[1], written[3])], "by the first only"
