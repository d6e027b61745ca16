"""The sink while topics are deleted and created again, and how it ends while Kafka does not answer."""

import asyncio
import logging
from typing import Any

import pytest
from aiokafka import TopicPartition

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.clients import open_admin, open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, EVENTS, FEEDBACK, Topic
from headrace.schemas.wire import decode_payload, encode
from headrace.streams.clickhouse import sink
from headrace.streams.clickhouse.database import RetryingClient
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
from tests.conftest import RunningKafka
from tests.streams.clickhouse.test_sink import count, events_of, running_sink, send_events, until
from tests.streams.clickhouse.test_sink_reading import end_of, send_to, until_committed

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


async def send_feedback(bootstrap: str, name: str, count: int) -> None:
    """Send ``count`` records of ``feedback`` to partition 1."""
    async with open_producer(bootstrap) as producer:
        for number in range(count):
            envelope = Envelope(f"{name}-{number}", FeedbackGiven.TYPE, "/test", 1, "t")
            message = encode(FeedbackGiven(signal="accepted", value=1.0), key="t", envelope=envelope)
            await (await send(producer, FEEDBACK, message, partition=1))


def feedback_of(name: str) -> str:
    return f"SELECT uniqExact(id) FROM feedback WHERE startsWith(id_text, '{name}-')"


async def delete(bootstrap: str, topic: Topic) -> None:
    """Delete ``topic``; returns once the broker has forgotten it."""
    async with open_admin(bootstrap) as admin:
        await admin.delete_topics([topic.name])
        while topic.name in await admin.list_topics():  # noqa: ASYNC110 - at the broker
            await asyncio.sleep(0.1)


async def recreate(bootstrap: str, topic: Topic) -> None:
    await delete(bootstrap, topic)
    await create_topics(bootstrap)


async def deletions(bootstrap: str) -> list[str]:
    """The topics that alerts report as deleted."""
    alerts = [decode_payload(Alert.TYPE, record.value) async for record in read_to_end(bootstrap, ALERTS)]
    found = {str(each.details["topic"]) for each in alerts if isinstance(each, Alert) and each.kind == "topic_deleted"}
    return sorted(found)


class HeldInserts:
    """Holds the inserts into one table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        insert = RetryingClient.insert

        async def held(client: RetryingClient, into: Any, *arguments: Any, **named: Any) -> None:
            if into.name == table:
                self.begun.set()
                await self.may_end.wait()
            await insert(client, into, *arguments, **named)

        monkeypatch.setattr(RetryingClient, "insert", held)


@pytest.mark.parametrize("is_reassigned_first", [False, True])
async def test_a_topic_deleted_during_a_write_ends_only_its_own_partitions(
    kafka: str,
    clickhouse: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_reassigned_first: bool,
) -> None:
    name = "reassigned" if is_reassigned_first else "deleted"
    monkeypatch.setattr(sink, "_METADATA_S", 1.0 if is_reassigned_first else 30.0)
    caplog.set_level(logging.INFO, "aiokafka.consumer.group_coordinator")
    inserts = HeldInserts(monkeypatch, "feedback")
    async with running_sink(SinkConfig(kafka, clickhouse, group=name)):
        await send_feedback(kafka, name, 3)
        await inserts.begun.wait()
        before = caplog.text.count("newly assigned partitions")
        await delete(kafka, FEEDBACK)
        while is_reassigned_first and caplog.text.count("newly assigned partitions") == before:  # noqa: ASYNC110 - a log
            await asyncio.sleep(0.1)
        inserts.may_end.set()
        await send_events(kafka, f"others-{name}", 100)
        await until(clickhouse, events_of(f"others-{name}"), 100)
        await until(clickhouse, feedback_of(name), 3)
        alerts = "SELECT uniqExact(id) FROM alerts WHERE kind = 'topic_deleted'"
        await until(clickhouse, alerts, 1 + is_reassigned_first)
        assert await deletions(kafka) == ["feedback"]
        # The new topic's offsets are those of the old one.
        await create_topics(kafka)
        await send_feedback(kafka, f"new-{name}", 3)
        await until(clickhouse, feedback_of(f"new-{name}"), 3)
    assert count(clickhouse, feedback_of(name)) == 3


@pytest.mark.parametrize("topic", [EVENTS, FEEDBACK], ids=lambda topic: topic.name)
async def test_a_topic_recreated_under_a_running_sink_is_read_from_its_start(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch, topic: Topic
) -> None:
    monkeypatch.setattr(sink, "_METADATA_S", 2.0)
    rows = {EVENTS: events_of, FEEDBACK: feedback_of}[topic]
    fill = {EVENTS: lambda *args: send_to(*args), FEEDBACK: lambda bootstrap, _, *args: send_feedback(bootstrap, *args)}
    group, place = f"recreated-{topic.name}", TopicPartition(topic.name, 1)
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await fill[topic](kafka, topic, "old", 3)
        await until(clickhouse, rows("old"), 3)
        await until_committed(kafka, group, place, await end_of(kafka, place))
        await recreate(kafka, topic)
        await fill[topic](kafka, topic, "new", 8)  # beyond the old topic's end
        await until(clickhouse, rows("new"), 8)
        await until_committed(kafka, group, place, 8)


@pytest.mark.parametrize("topic", [EVENTS, FEEDBACK], ids=lambda topic: topic.name)
async def test_a_topic_recreated_while_the_sink_is_stopped_is_read_from_its_start(
    kafka: str, clickhouse: str, topic: Topic
) -> None:
    rows = {EVENTS: events_of, FEEDBACK: feedback_of}[topic]
    fill = {EVENTS: lambda *args: send_to(*args), FEEDBACK: lambda bootstrap, _, *args: send_feedback(bootstrap, *args)}
    config = SinkConfig(kafka, clickhouse, group=f"between-{topic.name}")
    for name, number in (("first", 3), ("second", 3), ("third", 8)):
        await recreate(kafka, topic)
        await fill[topic](kafka, topic, name, number)
        async with running_sink(config):
            await until(clickhouse, rows(name), number)
            await until_committed(kafka, config.group, TopicPartition(topic.name, 1), number)


async def test_the_sink_ends_while_kafka_is_frozen_and_repeats_what_it_had_announced(
    running_kafka: RunningKafka, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_STOP_S", 2.0)
    kafka = running_kafka.bootstrap
    config = SinkConfig(kafka, clickhouse, group="frozen")
    inserts = HeldInserts(monkeypatch, "events")
    stop = asyncio.Event()
    ending = asyncio.create_task(run_sink(config, stop=stop, ready=lambda: None))
    await send_events(kafka, "frozen", 100)
    await inserts.begun.wait()
    await asyncio.to_thread(running_kafka.freeze)
    try:
        inserts.may_end.set()
        await until(clickhouse, events_of("frozen"), 1)
        stop.set()
        async with asyncio.timeout(60):
            await ending
    finally:
        await asyncio.to_thread(running_kafka.freeze, False)
    await running_kafka.stays_listed()
    async with running_sink(config):
        await until(clickhouse, events_of("frozen", "uniqExact(id)"), 100)
        await send_events(kafka, "thawed", 10)
        await until(clickhouse, events_of("thawed"), 10)
    assert count(clickhouse, events_of("frozen")) == 100
