"""A sink whose partitions went to another one and came back while its insert was running."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import EVENTS
from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.database import RetryingClient
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
from tests.streams.clickhouse.test_repeated_insert import start_at_the_end
from tests.streams.clickhouse.test_sink import count, events_of, running_sink, send_events, until

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


async def test_a_late_commit_does_not_go_back_behind_what_another_sink_has_written_meanwhile(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sink A announces and inserts slowly; B joins, repeats A's insert, writes and commits more, and leaves; A gets all
    partitions back, and only then its insert ends.
    """
    name = "away-and-back"
    config = SinkConfig(kafka, clickhouse, group=name)
    partitions = await start_at_the_end(kafka, name)
    begun, may_end, slow = asyncio.Event(), asyncio.Event(), list[RetryingClient]()
    insert, on_assigned = RetryingClient.insert, AssignedPartitions.on_partitions_assigned
    owned = dict[AssignedPartitions, int]()

    async def slow_insert(self: RetryingClient, table: Table, *arguments: Any, **named: Any) -> None:
        if table.name == EVENTS.name and (not slow or slow[0] is self):
            slow[:] = [self]
            begun.set()
            await may_end.wait()
        await insert(self, table, *arguments, **named)

    async def noted(self: AssignedPartitions, assigned: Iterable[TopicPartition]) -> None:
        places = list(assigned)
        owned[self] = sum(place.topic == EVENTS.name for place in places)
        await on_assigned(self, places)

    monkeypatch.setattr(RetryingClient, "insert", slow_insert)
    monkeypatch.setattr(AssignedPartitions, "on_partitions_assigned", noted)
    async with open_consumer(kafka) as consumer:
        places = await partitions_of(consumer, EVENTS)

    async def committed() -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in (await committed_offsets(kafka, name, places)).items()}

    async with running_sink(config):
        await send_events(kafka, name, 400)
        await begun.wait()
        (first,) = owned
        stop, ready = asyncio.Event(), asyncio.Event()
        other = asyncio.create_task(run_sink(config, stop=stop, ready=ready.set))
        await ready.wait()
        while owned[first] == partitions:  # noqa: ASYNC110 - at the broker
            await asyncio.sleep(0.2)
        await until(clickhouse, events_of(name, "uniqExact(id)"), 400)  # by B: it repeats A's insert
        await send_events(kafka, f"{name}-more", 400)
        async with open_consumer(kafka) as consumer:
            ends = await consumer.end_offsets(places)
        at = await committed()
        while not any(at[place] == ends[place] for place in places):
            await asyncio.sleep(0.2)
            at = await committed()
        stop.set()
        await other
        while owned[first] < partitions:  # noqa: ASYNC110 - at the broker
            await asyncio.sleep(0.2)
        may_end.set()
        await until(clickhouse, events_of(f"{name}-more", "uniqExact(id)"), 400)
        now = await committed()
        while any(now[place] < ends[place] for place in places):
            await asyncio.sleep(0.2)
            now = await committed()
    # The prefix is that of both.
    assert count(clickhouse, events_of(name)) == 800
