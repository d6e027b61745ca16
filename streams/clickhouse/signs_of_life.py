"""The sink's signs of life: a row in `sinks`, every second, for as long as its main loop turns and Kafka answers.

{"sink": "sink/local", "time": 1790000000000}

The pages of the dashboard tell by them within five seconds that nothing is written any more: the process is gone or
hangs, Kafka does not answer, or ClickHouse takes no inserts.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.streams.clickhouse.columns import arrow_table
from headrace.streams.clickhouse.database import RetryingClient
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.tables import SINKS

log = logging.getLogger(__name__)

KAFKA_S = 2.0
"""Seconds within which Kafka must answer."""


async def give_signs(
    config: SinkConfig,
    consumer: AIOKafkaConsumer,
    database: RetryingClient,
    rounds: Callable[[], int],
    places: Callable[[], Sequence[TopicPartition]],
    stop: asyncio.Event,
) -> None:
    """Write signs of life until ``stop`` is set. ``rounds`` returns how often the main loop has turned, ``places`` the
    partitions that it reads. There is no sign while the loop stands still or reads nothing, nor while the broker does
    not answer ``consumer``."""
    name = f"{config.group}/{config.member or socket.gethostname()}"
    turned = 0
    while not stop.is_set():
        now = rounds()
        if now != turned and await _answers(consumer, places()):
            turned, time_ms = now, time.time_ns() // 1_000_000
            row = arrow_table(SINKS, [{"sink": name, "time": time_ms}])
            try:
                await database.insert_once(SINKS, row, f"{name}:{time_ms}")
            except (ClickHouseError, OSError) as error:  # others report it; its missing is what is to be noticed
                log.debug("no sign of life was written: %s", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(config.sign_interval_s):
                await stop.wait()


async def _answers(consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> bool:
    if not places:
        return False
    try:
        async with asyncio.timeout(KAFKA_S):
            await consumer.end_offsets(places[:1])
    except (TimeoutError, KafkaError):
        return False
    return True
