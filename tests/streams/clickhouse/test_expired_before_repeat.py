"""Records of an announced insert that expire after the sink looked at the log, and before it repeats the insert."""

import asyncio

import pytest
from aiokafka import TopicPartition

from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, EVENTS
from headrace.schemas.wire import decode_payload
from headrace.streams.clickhouse import write_cycle
from headrace.streams.clickhouse.cuts import PlannedInsert
from headrace.streams.clickhouse.repeated_insert import RereadRange, ranges_again
from headrace.streams.clickhouse.sink_config import SinkConfig
from tests.expired import delete_before
from tests.streams.clickhouse.test_repeated_insert import killed, start_at_the_end
from tests.streams.clickhouse.test_sink import count, events_of, running_sink, send_events, until

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


async def test_records_that_expire_while_a_repeated_insert_waits_raise_an_alert(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the moment between looking up where the log starts and reading it."""
    name = "expires-waiting"
    config = SinkConfig(kafka, clickhouse, group=name, linger_s=3.0)
    await start_at_the_end(kafka, name)
    await send_events(kafka, name, 2_000)
    insert = await killed(config, monkeypatch, inserted=False)
    (wanted,) = [each for each in insert.ranges if each.partition == 1]
    has_expired = asyncio.Event()

    async def later(bootstrap: str, repeated: PlannedInsert) -> dict[int, RereadRange] | None:
        if repeated.topic == EVENTS.name and not has_expired.is_set():
            await delete_before(kafka, TopicPartition(EVENTS.name, 1), wanted.end)
            has_expired.set()
        return await ranges_again(bootstrap, repeated)

    monkeypatch.setattr(write_cycle, "ranges_again", later)
    async with running_sink(config):
        await has_expired.wait()
        await send_events(kafka, f"{name}-later", 100)
        await until(clickhouse, events_of(f"{name}-later", "uniqExact(id)"), 100)
    lost = 2_100 - count(clickhouse, events_of(name, "uniqExact(id)"))
    assert lost == wanted.end - wanted.first
    alerts = [decode_payload(Alert.TYPE, record.value) async for record in read_to_end(kafka, ALERTS)]
    expired = [each.details for each in alerts if isinstance(each, Alert) and each.kind == "records_expired"]
    assert [(each["partition"], each["unread"]) for each in expired] == [(1, lost)]
