"""The timestamp type of topics is checked on a real broker, and the error message contains the fix."""

import asyncio
import re
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.kafka.java import find_java
from headrace.schemas.asyncapi import FROM_AGENTS
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.topic_clock import (
    WrongClockError,
    check_clocks,
    offsets_retention_minutes,
    set_clocks,
    timestamp_types,
)
from headrace.schemas.kafka.topic_settings import set_configs
from headrace.schemas.topics import EVENTS, FEEDBACK, REWARDS, TOPICS, TRAJECTORIES
from tests.conftest import CACHE

pytestmark = pytest.mark.kafka
OPTION = "assemble.trust_producers_time"
PATIENCE: dict[str, Any] = {"wait": wait_fixed(0.1), "stop": stop_after_delay(60), "reraise": True}


async def test_topics_that_agents_write_to_are_stamped_by_the_broker(kafka: str) -> None:
    assert await timestamp_types(kafka, TOPICS) == {
        topic.name: "LogAppendTime" if topic in FROM_AGENTS else "CreateTime" for topic in TOPICS
    }
    await check_clocks(kafka, TOPICS, override=OPTION)
    year_ago_ms = time.time_ns() // 1_000_000 - 365 * 86_400_000
    async with open_producer(kafka) as producer:
        for topic in (EVENTS, FEEDBACK, TRAJECTORIES):
            await (await producer.send(topic.name, value=b"x", partition=0, timestamp_ms=year_ago_ms))
    for topic, is_old in ((EVENTS, False), (FEEDBACK, False), (TRAJECTORIES, True)):
        stamped = [record.timestamp async for record in read_to_end(kafka, topic)]
        assert [stamp == year_ago_ms for stamp in stamped[-1:]] == [is_old], topic.name


@pytest.mark.parametrize("ahead_s", [3 * 3600, -3 * 3600, -50 * 365 * 86_400])
async def test_no_host_clock_makes_the_broker_refuse_agents_records(kafka: str, ahead_s: int) -> None:
    stamp_ms = time.time_ns() // 1_000_000 + 1_000 * ahead_s
    async with open_producer(kafka) as producer:
        for topic in FROM_AGENTS:
            await (await producer.send(topic.name, value=b"x", partition=0, timestamp_ms=stamp_ms))


async def test_a_topic_with_another_clock_is_refused_with_the_command_that_fixes_it(kafka: str) -> None:
    """The command in the message is run unchanged by Kafka's own tool."""
    await set_configs(kafka, [replace(EVENTS, broker_time=False), replace(REWARDS, broker_time=True)])
    with pytest.raises(WrongClockError) as refused:
        await check_clocks(kafka, (EVENTS, FEEDBACK, REWARDS), override=OPTION)
    message = str(refused.value)
    assert f"set {OPTION}=true" in message
    commands = re.findall(r"^kafka-configs.sh (.*)$", message, re.MULTILINE)
    assert [command.split("--entity-name ")[1].split()[0] for command in commands] == ["events", "rewards"]
    libs = await kafka_jars(CACHE)
    for command in commands:
        argv = [find_java().program, "-Xmx128m", "-cp", f"{libs}/*", "kafka.admin.ConfigCommand", *command.split()]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    async for attempt in AsyncRetrying(retry=retry_if_exception_type(WrongClockError), **PATIENCE):
        with attempt:  # the tool does not wait until the broker applies the change
            await check_clocks(kafka, (EVENTS, FEEDBACK, REWARDS), override=OPTION)


async def test_our_own_broker_with_older_data_is_reconfigured(kafka: str) -> None:
    await set_configs(kafka, [replace(EVENTS, broker_time=False)])
    await set_clocks(kafka)
    await check_clocks(kafka, TOPICS, override=OPTION)


async def test_offset_retention_is_read_from_the_broker(kafka: str) -> None:
    """Our own broker keeps offsets for a year."""
    assert await offsets_retention_minutes(kafka) == 365 * 24 * 60
