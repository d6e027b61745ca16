"""A loss is reported once: the alert is followed by a commit, so that a restart of the sink finds nothing to report."""

import asyncio
import logging
from collections.abc import Mapping

import pytest
from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import EXPIRED
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, EVENTS, FEEDBACK, Topic
from headrace.schemas.wire import decode_payload
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.cuts import CommitMetadata
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.unstored import SOURCE
from headrace.streams.lost_offset import LOG_ENDS_EARLY, TOPIC_RECREATED
from tests.expired import delete_before, expired_alerts
from tests.streams.clickhouse.test_deleted_topics import HeldInserts, recreate
from tests.streams.clickhouse.test_sink import count, events_of, running_sink
from tests.streams.clickhouse.test_sink_reading import end_of, send_to, until_committed

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]

both = pytest.mark.parametrize("topic", [EVENTS, FEEDBACK], ids=lambda topic: topic.name)


async def commit(bootstrap: str, group: str, place: TopicPartition, offset: int, metadata: str = "") -> None:
    async with open_consumer(bootstrap, group=group) as consumer:
        consumer.assign([place])
        await consumer.commit({place: (offset, metadata)})


async def alerts_about(bootstrap: str, place: TopicPartition, kind: str) -> list[int]:
    """The committed offsets in the alerts about ``place``, one for each record."""
    read = [decode_payload(Alert.TYPE, record.value) async for record in read_to_end(bootstrap, ALERTS)]
    found = [each for each in read if isinstance(each, Alert) and each.kind == kind]
    return [
        each.details["committed"]
        for each in found
        if TopicPartition(each.details["topic"], each.details["partition"]) == place
    ]


@both
async def test_a_restart_reports_no_loss_again_although_no_record_arrives(
    kafka: str, clickhouse: str, topic: Topic
) -> None:
    place, group = TopicPartition(topic.name, 3), f"reported-{topic.name}"
    await send_to(kafka, topic, group, 10, partition=3)
    end = await end_of(kafka, place)
    await commit(kafka, group, place, end - 8)
    await delete_before(kafka, place, end)
    counted = 0
    for _ in range(3):
        async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
            async with asyncio.timeout(20):
                await until_committed(kafka, group, place, end)
        lost = EXPIRED.by_partition[SOURCE, *place]
        assert counted in (0, lost)
        counted = lost
        assert [each for each in await expired_alerts(kafka, SOURCE) if each[0] == topic.name] == [(*place, end, 8)]


@both
async def test_a_commit_behind_the_log_end_raises_one_alert(kafka: str, clickhouse: str, topic: Topic) -> None:
    """As after the topic was recreated before the sink wrote its id, or after a broker lost records."""
    place, group = TopicPartition(topic.name, 0), f"beyond-{topic.name}"
    await commit(kafka, group, place, 10**6)
    for _ in range(2):
        async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
            async with asyncio.timeout(20):
                await until_committed(kafka, group, place, 0)
        assert await alerts_about(kafka, place, LOG_ENDS_EARLY) == [10**6]


async def test_an_announced_batch_of_which_records_expired_is_reported_and_stored_once(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between insert and commit; then records expire; then it is killed before it has inserted the rest."""
    place, config = TopicPartition(EVENTS.name, 2), SinkConfig(kafka, clickhouse, group="announced")
    start = await end_of(kafka, place)
    await commit(kafka, config.group, place, start)
    await send_to(kafka, EVENTS, "announced", 10, partition=2)
    committing, inserted = TopicCommits.commit, asyncio.Event()

    async def announcements_only(self: TopicCommits, commits: Mapping[TopicPartition, Commit]) -> None:
        if place in commits and not commits[place].ranges:
            inserted.set()
            await asyncio.Event().wait()
        await committing(self, commits)

    async def killed_once(reached: asyncio.Event) -> None:
        killed = asyncio.create_task(run_sink(config, stop=asyncio.Event(), ready=lambda: None))
        await reached.wait()
        killed.cancel()
        await asyncio.wait({killed})

    monkeypatch.setattr(TopicCommits, "commit", announcements_only)
    await killed_once(inserted)
    monkeypatch.setattr(TopicCommits, "commit", committing)
    assert count(clickhouse, events_of("announced")) == 10

    await delete_before(kafka, place, start + 4)
    for _ in range(2):
        with monkeypatch.context() as held:
            await killed_once(HeldInserts(held, EVENTS.name).begun)
    await delete_before(kafka, place, start + 6)
    async with running_sink(config):
        await until_committed(kafka, config.group, place, start + 10)
    assert count(clickhouse, events_of("announced")) == 10, "the token is that of the batch as it was announced"
    lost = [each for each in await expired_alerts(kafka, SOURCE) if each[:2] == tuple(place)]
    assert lost == [(*place, start + 4, 4), (*place, start + 6, 2)], "at most one alert about each offset"


async def test_after_a_topic_is_recreated_its_losses_are_counted_anew(
    kafka: str, clickhouse: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    place, config = TopicPartition(FEEDBACK.name, 2), SinkConfig(kafka, clickhouse, group="counted-anew")
    lost, topic_id = [], ""
    for name in ("first", "second"):
        await recreate(kafka, FEEDBACK)
        if topic_id:  # the broker may keep the commits of a deleted topic
            await commit(kafka, config.group, place, 8, str(CommitMetadata(topic_id)))
        topic_id = (await topic_ids(kafka, [FEEDBACK.name]))[FEEDBACK.name]
        async with running_sink(config):
            await send_to(kafka, FEEDBACK, f"counted-{name}", 3, partition=2)
            await until_committed(kafka, config.group, place, 3)
        await send_to(kafka, FEEDBACK, f"counted-{name}", 5, partition=2)
        await delete_before(kafka, place, 7)
        before = EXPIRED.by_partition.get((SOURCE, *place), 0)
        async with running_sink(config):
            await until_committed(kafka, config.group, place, 8)
        lost.append(EXPIRED.by_partition.get((SOURCE, *place), 0) - before)
    assert lost == [4, 4]
    assert await alerts_about(kafka, place, TOPIC_RECREATED) == [8]
    assert caplog.text.count("feedback[2] was deleted and created again, after /streams/sink had processed it") == 1
