"""A producer keeps the topics it writes to, and a client that finds no leader does not ask without a pause."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas import metadata_pace
from headrace.schemas.ids import uuid7
from headrace.schemas.log import create_topics, open_admin, open_producer
from headrace.schemas.metadata_pace import Pace
from headrace.schemas.topics import Topic


def topic() -> Topic:
    return Topic(f"pace-{uuid7()}", "none", (), 1, "Of a test.")


def test_pauses_double_while_the_asking_goes_on_and_begin_anew_after_a_silence() -> None:
    pace = Pace(0.1, 0.5)
    now, waits = 0.0, []
    for _ in range(5):
        waits.append(wait := pace.wait_s(now))
        now += wait
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.5])
    assert pace.wait_s(now + 1.1) == 0.0
    assert pace.wait_s(now + 1.1) == pytest.approx(0.1)


@given(st.lists(st.floats(0, 3, allow_nan=False), max_size=60))
def test_however_it_is_asked_two_requests_are_at_least_the_shortest_pause_apart(gaps: list[float]) -> None:
    pace, now, last = Pace(0.1, 0.5), 0.0, float("-inf")
    for gap in gaps:
        now += gap
        wait = pace.wait_s(now)
        assert 0 <= wait <= 0.5
        now += wait
        assert now - last >= 0.1 - 1e-9
        last = now


@pytest.mark.kafka
async def test_a_record_that_waits_does_not_lose_its_topic_to_one_that_is_new(kafka: str) -> None:
    """The client knows the old topic from its first request, and asks for the new one only."""
    old, new = topic(), topic()
    await create_topics(kafka, [old])
    async with open_producer(kafka, linger_ms=500, request_timeout_ms=5000) as producer:
        await create_topics(kafka, [new])
        waiting = [await producer.send(each.name, b"x") for each in (old, new)]
        assert [stored.offset for stored in await asyncio.gather(*waiting)] == [0, 0]


@pytest.mark.kafka
async def test_a_partition_without_a_leader_is_asked_for_at_a_pace(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    update = metadata_pace._update

    async def counted(client: AIOKafkaClient, *args: Any) -> Any:
        asked.append(time.monotonic())
        return await update(client, *args)

    gone = topic()
    await create_topics(kafka, [gone])
    async with open_producer(kafka, retry_backoff_ms=100, request_timeout_ms=2000) as producer:
        await producer.send_and_wait(gone.name, b"x")
        async with open_admin(kafka) as admin:
            await admin.delete_topics([gone.name])
        monkeypatch.setattr(metadata_pace, "_update", counted)
        waiting = await producer.send(gone.name, b"y")
        await asyncio.wait([waiting])
        assert waiting.exception() is not None
    assert len(asked) > 1
    assert min(later - earlier for earlier, later in pairwise(asked)) > 0.09, "it asked without a pause"
