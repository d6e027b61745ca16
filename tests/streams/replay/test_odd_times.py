"""Replays of events with times far ahead of the broker, which operators may allow: live processing continues."""

import asyncio
import time

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.side_topics import ReplayStage
from headrace.schemas.topics import EVENTS
from headrace.streams.replay.run import ReplayConfig, run_replay
from tests.clocks import with_producers_time
from tests.streams.assembly.test_assembler import assembling, config, produce, trajectories, until
from tests.streams.builders import session

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def any_times(kafka: str) -> str:
    """A broker whose ``events`` accept any time."""
    with_producers_time(kafka, EVENTS)

    async def allow() -> None:
        settings = {
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str(2**63 - 1),
            "max.message.bytes": str(EVENTS.max_bytes),
        }
        async with open_admin(kafka) as admin:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, EVENTS.name, settings)])

    asyncio.run(allow())
    return kafka


@pytest.mark.parametrize(("partition", "ahead_ms"), [(0, 2 * 3_600_000), (1, 253_402_300_800_000)])
async def test_a_replay_continues_where_live_processing_did(any_times: str, partition: int, ahead_ms: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    for name, time_ms in (("a", now_ms), ("b", now_ms + ahead_ms), ("c", now_ms + 5)):
        await produce(any_times, session(f"{partition}-{name}", "ask", "answer"), partition, time_ms)
    async with assembling(config(any_times, trust_producers_time=True)):
        await until(lambda: trajectories(any_times, f"{partition}-"), lambda found: f"{partition}-c" in found)
    replay = ReplayConfig(any_times, f"ahead-{partition}", ReplayStage.EVENTS, begin={partition: 0})
    finished = await asyncio.wait_for(run_replay(replay), 120)
    assert (
        finished.counts["trajectories"]
        == finished.counts["rewards"]
        == len(await trajectories(any_times, f"{partition}-"))
    )
    assert finished.end_ms <= now_ms + 3 * 3_600_000
