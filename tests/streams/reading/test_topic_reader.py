"""A topic is read to its end with librdkafka as with aiokafka: the same records, however many there are."""

from collections.abc import AsyncIterator, Mapping
from unittest.mock import Mock

import pytest
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaTimeoutError
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.kafka import reading
from headrace.schemas.kafka.clients import open_admin, open_consumer, open_producer
from headrace.schemas.kafka.expired import ExpiredRange
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.topics import EVENTS, Topic
from headrace.streams.raw import LogRecord
from headrace.streams.reading import topic_reader
from headrace.streams.reading.topic_reader import read_topic

pytestmark = pytest.mark.kafka


@pytest.fixture(params=["many", "few"], autouse=True)
def amount(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether what is there counts as many records or as few: librdkafka reads it, or aiokafka."""
    monkeypatch.setattr(topic_reader, "FEW", {"many": 0, "few": 10**9}[request.param])
    return str(request.param)


many = pytest.mark.parametrize("amount", ["many"], indirect=True)


async def ends_of(bootstrap: str, topic: Topic) -> dict[int, int]:
    async with open_consumer(bootstrap) as consumer:
        ends = await consumer.end_offsets(await partitions_of(consumer, topic))
        return {place.partition: end for place, end in ends.items()}


async def write(bootstrap: str, *values: bytes) -> None:
    """In a transaction each, the last of which is aborted, over all partitions."""
    async with open_producer(bootstrap, transactional_id="topic-reader") as producer:
        for number, value in enumerate(values):
            await producer.begin_transaction()
            for partition in range(4):
                headers = [("n", b"%d" % number)]
                await producer.send_and_wait(EVENTS.name, value=value, headers=headers, partition=partition)
            await (producer.abort_transaction() if number == len(values) - 1 else producer.commit_transaction())


def place_and_value(record: LogRecord) -> tuple[int, int, bytes | None, list[tuple[str, bytes | None]]]:
    return record.partition, record.offset, record.value, list(record.headers)


async def both(bootstrap: str, start: Mapping[int, int]) -> list[bytes | None]:
    """The values read from ``start``; asserts that aiokafka reads the same."""
    found = sorted([place_and_value(each) async for each in read_topic(bootstrap, EVENTS, start=start)])
    assert found == sorted([place_and_value(each) async for each in read_to_end(bootstrap, EVENTS, start=start)])
    return [value for _, _, value, _ in found]


async def test_committed_records_are_read_from_anywhere_to_the_end(kafka: str) -> None:
    begin = await ends_of(kafka, EVENTS)
    await write(kafka, b"1", b"2", b"gone")
    assert await both(kafka, begin) == [b"1", b"2"] * 4
    assert await both(kafka, begin | {0: begin[0] + 2, 1: 10**9}) == [b"2"] + [b"1", b"2"] * 2
    assert len(await both(kafka, {})) >= 8
    assert await both(kafka, await ends_of(kafka, EVENTS)) == []


@many
async def test_what_librdkafka_cannot_read_is_read_with_aiokafka(
    kafka: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = await ends_of(kafka, EVENTS)
    await write(kafka, b"1", b"2", b"gone")
    read = topic_reader._read

    async def fails(bootstrap: str, place: TopicPartition, start: int, end: int) -> AsyncIterator[LogRecord]:
        async for record in read(bootstrap, place, start, end):
            yield record
            if place.partition == 1:
                raise KafkaException(KafkaError(KafkaError._BAD_COMPRESSION))

    monkeypatch.setattr(topic_reader, "_read", fails)
    assert await both(kafka, begin) == [b"1", b"2"] * 4
    assert "events is read on more slowly" in caplog.text


async def test_expired_records_are_reported_once(kafka: str) -> None:
    await write(kafka, b"1", b"2", b"gone")
    ends = await ends_of(kafka, EVENTS)
    async with open_admin(kafka) as admin:
        await admin.delete_records({TopicPartition(EVENTS.name, 3): RecordsToDelete(before_offset=ends[3] - 2)})
    expired: list[ExpiredRange] = []
    start = ends | {3: ends[3] - 6}
    found = [each async for each in read_topic(kafka, EVENTS, start=start, on_expired=expired.append)]
    assert expired == [ExpiredRange(TopicPartition(EVENTS.name, 3), ends[3] - 6, ends[3] - 2)]
    assert all(record.offset >= ends[3] - 2 for record in found)


@many
async def test_a_broker_that_returns_nothing_ends_the_reading(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = await ends_of(kafka, EVENTS)
    await write(kafka, b"1", b"2", b"gone")
    monkeypatch.setattr(topic_reader, "Stall", lambda: reading.Stall(0.0))
    silent = Mock(position=0, read=Mock(return_value=[]))
    monkeypatch.setattr(topic_reader, "start_reader", lambda *_, **__: silent)
    with pytest.raises(KafkaTimeoutError, match="none of the remaining records"):
        [each async for each in read_topic(kafka, EVENTS, start=begin)]
    silent.close.assert_called_once()
