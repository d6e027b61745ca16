"""An insert that a killed sink announced is repeated exactly, by whichever processes have its partitions now."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.cuts import InsertRange, PlannedInsert
from headrace.streams.clickhouse.database import RetryingClient
from headrace.streams.clickhouse.repeated_insert import RereadRange, ranges_again
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.tables import EVENTS as EVENTS_TABLE
from tests.expired import delete_before
from tests.streams.clickhouse.test_deleted_topics import recreate
from tests.streams.clickhouse.test_sink import count, events_of, send_events, until
from tests.streams.clickhouse.test_sink_reading import end_of, send_to

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]

TOTAL = 2_000


async def killed(config: SinkConfig, monkeypatch: pytest.MonkeyPatch, *, inserted: bool) -> PlannedInsert:
    """Run a sink that is killed after its first insert of events, or before it, all partitions of which are announced.
    Returns the insert.
    """
    reached, announced = asyncio.Event(), list[PlannedInsert]()
    commit, insert = TopicCommits.commit, RetryingClient.insert

    async def stop_at_the_end(self: TopicCommits, commits: Mapping[TopicPartition, Commit]) -> None:
        ranges = {each.ranges for place, each in commits.items() if place.topic == EVENTS.name and each.ranges}
        if ranges:
            (found,) = ranges
            announced.append(PlannedInsert(EVENTS.name, self.topic_id(TopicPartition(EVENTS.name, 0)), found))
        elif any(place.topic == EVENTS.name for place in commits) and announced:
            reached.set()
            await asyncio.Event().wait()
        await commit(self, commits)

    async def stop_at_the_insert(self: RetryingClient, table: Table, *arguments: Any, **named: Any) -> None:
        if table.name == EVENTS.name and not inserted:
            reached.set()
            await asyncio.Event().wait()
        await insert(self, table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(TopicCommits, "commit", stop_at_the_end)
        patched.setattr(RetryingClient, "insert", stop_at_the_insert)
        running = asyncio.create_task(run_sink(config, stop=asyncio.Event(), ready=lambda: None))
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})
    return announced[0]


async def start_at_the_end(bootstrap: str, group: str) -> int:
    """Commit the ends of the partitions of `events` for ``group``; returns how many there are."""
    async with open_consumer(bootstrap, group=group) as consumer:
        places = await partitions_of(consumer, EVENTS)
        consumer.assign(places)
        await consumer.commit(await consumer.end_offsets(places))
    return len(places)


@pytest.mark.parametrize("inserted", [True, False], ids=["after the insert", "before the insert"])
@pytest.mark.parametrize("sinks", [1, 2], ids=["by one process", "by two"])
async def test_an_announced_insert_of_all_partitions_is_repeated_exactly(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch, inserted: bool, sinks: int
) -> None:
    name = f"announced-{inserted}-{sinks}"
    config = SinkConfig(kafka, clickhouse, group=name, linger_s=3.0)
    partitions = await start_at_the_end(kafka, name)
    await send_events(kafka, name, TOTAL)
    insert = await killed(config, monkeypatch, inserted=inserted)
    assert len(insert.ranges) == partitions, "all partitions are written by one insert"
    assert (count(clickhouse, events_of(name)) > 0) is inserted

    repeated, original = list[str](), RetryingClient.insert

    async def noted(self: RetryingClient, table: Table, rows: Any, token: str, **named: Any) -> None:
        repeated.append(token)
        await original(self, table, rows, token, **named)

    monkeypatch.setattr(RetryingClient, "insert", noted)
    # Two members that join at the same time share the partitions of the announced insert.
    async with asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()
        for _ in range(sinks):
            tasks.create_task(run_sink(config, stop=stop, ready=lambda: None))
        await until(clickhouse, events_of(name, "uniqExact(id)"), TOTAL)
        await send_events(kafka, f"{name}-later", 100)
        await until(clickhouse, events_of(f"{name}-later", "uniqExact(id)"), 100)
        stop.set()
    # Without FINAL: the token alone makes it exact, nothing is left to merges.
    assert count(clickhouse, events_of(name)) == TOTAL + 100
    assert insert.token(EVENTS_TABLE) in repeated


async def test_a_partition_of_another_process_is_read_for_a_repeated_insert(kafka: str, clickhouse: str) -> None:
    starts = [await end_of(kafka, TopicPartition(FEEDBACK.name, partition)) for partition in range(3)]
    for partition in range(3):
        await send_to(kafka, FEEDBACK, f"again-{partition}", 5, partition=partition)
    topic_id = (await topic_ids(kafka, [FEEDBACK.name]))[FEEDBACK.name]
    insert = PlannedInsert(
        FEEDBACK.name, topic_id, tuple(InsertRange(each, starts[each], starts[each] + 4) for each in range(3))
    )

    def offsets(again: Mapping[int, RereadRange] | None) -> dict[int, list[int]]:
        # These records belong in another topic, so each is an error, at its offset.
        assert again is not None
        found = {partition: [record.offset for record, _ in each.batch.unreadable] for partition, each in again.items()}
        assert {partition: each.first for partition, each in again.items()} == {
            key: each[0] for key, each in found.items()
        }
        return {partition: [offset - starts[partition] for offset in each] for partition, each in found.items()}

    assert offsets(await ranges_again(kafka, insert)) == {partition: [0, 1, 2, 3] for partition in range(3)}
    await delete_before(kafka, TopicPartition(FEEDBACK.name, 1), starts[1] + 2)
    await delete_before(kafka, TopicPartition(FEEDBACK.name, 2), starts[2] + 4)
    assert offsets(await ranges_again(kafka, insert)) == {0: [0, 1, 2, 3], 1: [2, 3]}
    truncated = PlannedInsert(FEEDBACK.name, topic_id, (InsertRange(0, starts[0], starts[0] + 100), insert.ranges[1]))
    assert offsets(await ranges_again(kafka, truncated)) == {1: [2, 3]}
    await recreate(kafka, FEEDBACK)
    await send_to(kafka, FEEDBACK, "again", 5, partition=0)
    assert await ranges_again(kafka, insert) is None, "its topic is another one now"
