"""Topics are created once, and their committed records read to the end, on a real broker."""

import pytest

from headrace.schemas.events import TrajectoryEnded
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS, FEEDBACK, STEPS, Topic
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


async def test_an_empty_topic_ends_at_once(kafka: str) -> None:
    assert [record async for record in read_to_end(kafka, FEEDBACK)] == []


async def test_reading_can_start_in_the_middle(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        for number in range(5):
            await (await send(producer, STEPS, ended(str(number))))
    keys = [record.key async for record in read_to_end(kafka, STEPS, start={0: 3})]
    assert keys == [b"3", b"4"]


async def test_a_missing_topic_is_named(kafka: str) -> None:
    async with open_consumer(kafka) as consumer:
        with pytest.raises(LookupError, match="no-such-topic"):
            await partitions_of(consumer, Topic("no-such-topic", "", (), 1, ""))
