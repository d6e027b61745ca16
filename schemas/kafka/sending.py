"""Sends one message with a timestamp that every broker accepts."""

import time
from typing import Any

from aiokafka import AIOKafkaProducer

from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

AHEAD_MS = 50 * 60 * 1000
"""How far ahead of now a timestamp may be; Kafka's default is an hour."""


async def send(
    producer: AIOKafkaProducer,
    topic: Topic,
    message: Message,
    partition: int | None = None,
    *,
    timestamp_ms: int | None = None,
) -> Any:
    """Hand ``message`` to the producer; return an awaitable that resolves once the broker has stored it.

    ``timestamp_ms`` (Unix) is stream time, limited by :func:`acceptable_ms`; ``None``: the time of sending.
    """
    return await producer.send(
        topic.name,
        key=message.key,
        value=message.value,
        headers=message.headers,
        partition=partition,
        timestamp_ms=None if timestamp_ms is None else acceptable_ms(timestamp_ms),
    )


def acceptable_ms(timestamp_ms: int) -> int:
    """Limit ``timestamp_ms`` (Unix) to at least 0 and at most :data:`AHEAD_MS` ahead of the wall clock.

    Brokers refuse a record that is further ahead (``message.timestamp.after.max.ms``), and a transaction with such a
    record would fail at every retry.
    """
    return min(max(0, timestamp_ms), time.time_ns() // 1_000_000 + AHEAD_MS)
