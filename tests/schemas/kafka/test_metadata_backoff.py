"""A producer keeps the topics it writes to, and a client without a leader pauses between metadata requests."""

import asyncio
import time
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.ids import uuid7
from headrace.schemas.kafka import metadata_backoff
from headrace.schemas.kafka.clients import open_admin, open_producer
from headrace.schemas.kafka.metadata_backoff import LONGEST_PAUSE_S, MetadataBackoff
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import Topic


def topic() -> Topic:
    return Topic(f"backoff-{uuid7()}", "none", (), 1, "Of a test.")


TOPICS = ("a", "b")


def asked(backoff: MetadataBackoff, times: Iterable[float]) -> list[float]:
    """The ``times`` at which a request is allowed."""
    return [now for now in times if backoff.may_request(now, TOPICS)]


def test_pauses_double_while_requests_continue_and_reset_after_a_silence() -> None:
    backoff = MetadataBackoff(0.1, 0.5)
    assert asked(backoff, [n / 100 for n in range(300)]) == pytest.approx(
        [0, 0.1, 0.3, 0.7, 1.2, 1.7, 2.2, 2.7], abs=0.05
    )
    assert asked(backoff, [5.0, 5.05, 5.11]) == pytest.approx([5.0, 5.11])


def test_a_request_for_other_topics_is_not_delayed() -> None:
    backoff = MetadataBackoff(0.1)
    requested = [("a",), ("a",), ("a", "b"), ("b", "a")]
    assert [backoff.may_request(0.01 * n, each) for n, each in enumerate(requested)] == [True, False, True, False]


@given(st.floats(0.01, 1), st.lists(st.floats(0, 3), max_size=60))
def test_two_requests_are_always_at_least_the_shortest_pause_apart(first_s: float, gaps: list[float]) -> None:
    times = asked(MetadataBackoff(first_s, 0.5), accumulate(gaps))
    assert all(later - earlier >= first_s - 1e-9 for earlier, later in pairwise(times))


@pytest.mark.kafka
async def test_a_waiting_record_keeps_its_topic_when_a_new_topic_is_added(kafka: str) -> None:
    """The client knows the old topic from a request for all topics, and requests only the new one."""
    old, new = topic(), topic()
    await create_topics(kafka, [old])
    async with open_producer(kafka, linger_ms=500, request_timeout_ms=5000) as producer:
        await producer.client.force_metadata_update()  # before the first write this requests all topics
        await create_topics(kafka, [new])
        waiting = [await producer.send(each.name, b"x") for each in (old, new)]
        assert [stored.offset for stored in await asyncio.gather(*waiting)] == [0, 0]


@pytest.mark.kafka
async def test_a_partition_without_a_leader_costs_few_requests_and_does_not_delay_others(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = 0
    update = metadata_backoff._update

    async def counted(client: AIOKafkaClient, *args: Any) -> Any:
        nonlocal requests
        requests += 1
        return await update(client, *args)

    gone, healthy = topic(), topic()
    await create_topics(kafka, [gone, healthy])
    async with open_producer(kafka, request_timeout_ms=5000) as producer:
        await producer.send_and_wait(gone.name, b"x")
        async with open_admin(kafka) as admin:
            await admin.delete_topics([gone.name])
        monkeypatch.setattr(metadata_backoff, "_update", counted)
        begin = time.monotonic()
        waiting = await producer.send(gone.name, b"y")
        others = 0
        while not waiting.done():
            await producer.send_and_wait(healthy.name, b"z")
            others += 1
        assert waiting.exception() is not None
        took_s = time.monotonic() - begin
    assert 1 < requests < 10 + took_s / LONGEST_PAUSE_S * 2
    assert others > requests, "a record waits for less than a request for metadata"
