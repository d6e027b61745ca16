"""Partitions that move between two sinks are written once, without merges."""

import pytest

from headrace.streams.clickhouse.sink_config import SinkConfig
from tests.streams.clickhouse.test_repeated_insert import start_at_the_end
from tests.streams.clickhouse.test_sink import count, events_of, running_sink, send_events, until

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


async def test_partitions_that_move_between_two_sinks_are_written_once_without_final(
    kafka: str, clickhouse: str
) -> None:
    config = SinkConfig(kafka, clickhouse, group="moved", linger_s=0.05, batch_records=128)
    await start_at_the_end(kafka, "moved")
    sent = 0
    async with running_sink(config):
        for number in range(3):
            await send_events(kafka, f"moved-{number}a", 1_000)
            async with running_sink(config):
                await send_events(kafka, f"moved-{number}b", 3_000)
                sent += 4_000
                await until(clickhouse, events_of("moved", "uniqExact(id)"), sent)
            await send_events(kafka, f"moved-{number}c", 1_000)
            sent += 1_000
        await until(clickhouse, events_of("moved", "uniqExact(id)"), sent)
    assert count(clickhouse, events_of("moved")) == sent
