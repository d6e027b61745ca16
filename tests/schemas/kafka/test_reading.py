"""Topics are created once, and their committed records read to the end, on a real broker."""

import asyncio
import os
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import Producer

from headrace.schemas.events import TrajectoryEnded
from headrace.schemas.kafka.clients import FETCH_BYTES, open_admin, open_consumer, open_producer
from headrace.schemas.kafka.reading import AT_ONCE, RangeExpired, partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS, FEEDBACK, REJECTED, STEPS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, record_message

pytestmark = pytest.mark.kafka


def ended(subject: str) -> Message:
    return record_message(
        TrajectoryEnded(), id=f"id-{subject}", key=subject, source="/tests", time_ms=1_700_000_000_000, subject=subject
    )


async def test_topics_are_created_once(kafka: str) -> None:
    assert await create_topics(kafka) == []


async def test_reading_to_the_end_sees_every_committed_record_and_nothing_aborted(kafka: str) -> None:
    async with open_producer(kafka, transactional_id="log-test") as producer:
        async with producer.transaction():
            for number in range(20):
                await send(producer, EVENTS, ended(f"kept-{number}"))
        await producer.begin_transaction()
        await (await send(producer, EVENTS, ended("aborted")))
        await producer.abort_transaction()
    keys = sorted([record.key.decode() async for record in read_to_end(kafka, EVENTS) if record.key])
    assert keys == sorted(f"kept-{number}" for number in range(20))


async def test_reading_an_empty_topic_ends_immediately(kafka: str) -> None:
    assert [record async for record in read_to_end(kafka, FEEDBACK)] == []


async def test_reading_can_start_in_the_middle(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        for number in range(5):
            await (await send(producer, STEPS, ended(str(number))))
    keys = [record.key async for record in read_to_end(kafka, STEPS, start={0: 3})]
    assert keys == [b"3", b"4"]


async def test_a_record_larger_than_a_fetch_is_read_whole_among_others(kafka: str) -> None:
    large = os.urandom(8 * FETCH_BYTES)
    async with open_producer(kafka) as producer:
        for partition in range(TRAJECTORIES.partitions):
            for value in (b"before", large, b"behind"):
                await producer.send_and_wait(TRAJECTORIES.name, value, partition=partition)
    found = [(record.partition, record.value) async for record in read_to_end(kafka, TRAJECTORIES)]
    for partition in range(TRAJECTORIES.partitions):
        assert [value for each, value in found if each == partition] == [b"before", large, b"behind"]


async def test_few_records_are_decoded_at_a_time_however_large_a_fetch_is(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_producer(kafka) as producer:
        for number in range(5 * AT_ONCE):
            await producer.send(REJECTED.name, b"%d" % number, partition=number % 2)
    decoded: list[int] = []
    getmany = AIOKafkaConsumer.getmany

    async def watched(self: AIOKafkaConsumer, *args: Any, **options: Any) -> Any:
        batches = await getmany(self, *args, **options)
        decoded.append(sum(map(len, batches.values())))
        return batches

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", watched)
    values = [int(record.value or b"") async for record in read_to_end(kafka, REJECTED)]
    assert sorted(values) == list(range(5 * AT_ONCE))
    assert max(decoded) == AT_ONCE


@pytest.mark.parametrize("whole", [False, True])
async def test_records_that_expire_while_they_are_read_are_left_out_or_an_error(kafka: str, whole: bool) -> None:
    place = TopicPartition(TRAJECTORIES.name, 1)
    async with open_producer(kafka) as producer:
        for number in range(6):
            last = await (
                await send(producer, TRAJECTORIES, Message(b"%d" % number, os.urandom(FETCH_BYTES), []), partition=1)
            )
    first = last.offset - 5
    async with open_consumer(kafka) as consumer:
        ends = await consumer.end_offsets(await partitions_of(consumer, TRAJECTORIES))
    start = {each.partition: end for each, end in ends.items()} | {1: first}
    records = read_to_end(kafka, TRAJECTORIES, start=start, whole=whole)
    read = [(await anext(records)).offset]
    await delete_before(kafka, place, last.offset)
    if whole:
        with pytest.raises(RangeExpired, match=r"trajectories\[1\] no longer has offset \d+: retention deleted it"):
            read += [record.offset async for record in records]
        with pytest.raises(RangeExpired, match=rf"no longer has offset {first}:"):
            await anext(read_to_end(kafka, TRAJECTORIES, start=start, whole=True))
    else:
        read += [record.offset async for record in records]
        assert read[-1] == last.offset
    assert read[0] == first
    assert len(read) < 6


async def delete_before(bootstrap: str, place: TopicPartition, offset: int) -> None:
    """As retention does."""
    async with open_admin(bootstrap) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=offset)})


async def test_a_missing_topic_is_named(kafka: str) -> None:
    async with open_consumer(kafka) as consumer:
        with pytest.raises(LookupError, match="no-such-topic"):
            await partitions_of(consumer, Topic("no-such-topic", "", (), 1, ""))


async def test_what_is_sent_to_a_new_topic_immediately_is_there(kafka: str) -> None:
    topic = Topic("new", "number", (), 200, "Numbers.")
    assert await create_topics(kafka, [topic]) == ["new"]
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "batch.num.messages": 1})
    for number in range(4 * topic.partitions):
        producer.produce("new", b"%d" % number, partition=number % topic.partitions)
    assert await asyncio.to_thread(producer.flush, 60) == 0
    found = [int(record.value or b"") async for record in read_to_end(kafka, topic)]
    assert sorted(found) == list(range(4 * topic.partitions))
