"""How far every consumer group is behind, as rows of the table `lag`: a gauge, so a missed sample is no loss."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.schemas.topics import TOPICS
from headrace.streams.columns import Row

log = logging.getLogger(__name__)

MAX_GROUPS = 64
"""Groups measured; a broker that others use too may know thousands."""


def lag_rows(
    group: str, commits: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], ms: int
) -> list[Row]:
    """The lag of ``group`` in each partition it has committed: end minus commit, in offsets. ``ms`` is the time."""
    return [
        {
            "time": ms,
            "consumer_group": group,
            "topic": partition.topic,
            "partition": partition.partition,
            "records": max(ends[partition] - offset, 0),
        }
        for partition, offset in sorted(commits.items())
        if partition in ends and offset >= 0
    ]


async def measure_lag(admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> list[Row]:
    """The lag of every group that has committed offsets of headrace's topics."""
    names = {topic.name for topic in TOPICS}
    groups = sorted(group for group, *_ in await admin.list_consumer_groups())
    commits: dict[str, dict[TopicPartition, int]] = {}
    for group in groups[:MAX_GROUPS]:
        offsets = await admin.list_consumer_group_offsets(group)
        ours = {partition: found.offset for partition, found in offsets.items() if partition.topic in names}
        if ours:
            commits[group] = ours
    partitions = {partition for ours in commits.values() for partition in ours}
    # Ends after commits: the other way round, a group could seem to be ahead of the log.
    ends = await consumer.end_offsets(list(partitions)) if partitions else {}
    now = time.time_ns() // 1_000_000
    return [row for group, ours in commits.items() for row in lag_rows(group, ours, ends, now)]


async def watch_lag(
    admin: AIOKafkaAdminClient,
    consumer: AIOKafkaConsumer,
    write: Callable[[list[Row]], Awaitable[None]],
    *,
    interval_s: float,
    stop: asyncio.Event,
) -> None:
    """Measure every ``interval_s`` seconds until ``stop``, and hand the rows to ``write``."""
    while not stop.is_set():
        try:
            rows = await measure_lag(admin, consumer)
            if rows:
                await write(rows)
        except (KafkaError, ClickHouseError, OSError) as error:
            log.warning("the lag was not measured: %s", error)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), interval_s)
