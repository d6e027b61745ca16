"""The sink's signs of life: one a second, and none while it stands still or Kafka does not answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from clickhouse_connect.driver.exceptions import OperationalError

from headrace.streams.clickhouse import signs_of_life
from headrace.streams.clickhouse.columns import Table, arrow_table
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.tables import SINKS

PLACES = [TopicPartition("events", 0)]
COUNTED = count(1).__next__
"""A main loop that turns."""
CONFIG = SinkConfig("localhost:9092", "http://localhost:8123", member="one", sign_interval_s=0.01)


class Clickhouse:
    """Keeps what is inserted; ``fails``: how many inserts it refuses first."""

    def __init__(self, fails: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self._fails = fails

    async def insert_once(self, table: Table, rows: pa.Table, token: str) -> None:
        assert table is SINKS
        if self._fails:
            self._fails -= 1
            raise OperationalError("connection refused")
        self.rows += rows.to_pylist()


class Broker:
    """A consumer whose broker answers as ``ends`` does."""

    def __init__(self, ends: Callable[[], Awaitable[None]]) -> None:
        self._ends = ends

    async def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._ends()
        return dict.fromkeys(places, 0)


async def answers() -> None:
    pass


async def hangs() -> None:
    await asyncio.sleep(60)


async def refuses() -> None:
    raise KafkaConnectionError


async def signs(
    rounds: Callable[[], int] = COUNTED,
    ends: Callable[[], Awaitable[None]] = answers,
    places: Sequence[TopicPartition] = tuple(PLACES),
    fails: int = 0,
    wanted: int = 2,
) -> list[dict[str, Any]]:
    """Returns the rows that are written until there are as many as ``wanted``, or for half a second."""
    arrow_table(SINKS, [])  # the first table takes a moment
    database, stop = Clickhouse(fails), asyncio.Event()
    giving = asyncio.create_task(
        signs_of_life.give_signs(CONFIG, Broker(ends), database, rounds, lambda: places, stop)  # type: ignore[arg-type]
    )
    for _ in range(50):
        if len(database.rows) >= wanted:
            break
        await asyncio.sleep(0.01)
    stop.set()
    await giving
    return database.rows


async def test_a_sink_that_works_gives_signs_one_after_the_other() -> None:
    given = await signs(wanted=4)
    assert len(given) >= 4
    assert {row["sink"] for row in given} == {"sink/one"}
    assert [row["time"] for row in given] == sorted({row["time"] for row in given})


async def test_a_clickhouse_that_is_away_for_a_moment_gets_the_next_sign() -> None:
    assert len(await signs(fails=2)) > 1


async def test_a_main_loop_that_stands_still_gives_one_sign_and_no_more() -> None:
    assert len(await signs(rounds=lambda: 7)) == 1


@pytest.mark.parametrize("ends", [hangs, refuses])
async def test_there_is_no_sign_while_kafka_does_not_answer(
    ends: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signs_of_life, "KAFKA_S", 0.05)
    assert await signs(ends=ends) == []


async def test_a_sink_without_partitions_gives_none() -> None:
    assert await signs(places=()) == []
