"""Sending one message, with a timestamp that every broker accepts."""

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
    """Hand ``message`` to the producer; the awaitable it returns resolves once the broker has it.

    ``timestamp_ms`` (Unix) is log time, written as :func:`acceptable_ms`; ``None``: the time of sending.
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
    """``timestamp_ms`` (Unix), from 0 and at most :data:`AHEAD_MS` ahead of the wall's clock: brokers refuse a record
    that is further ahead (``message.timestamp.after.max.ms``), and a commit with one in it would fail for ever.
    """
    return min(max(0, timestamp_ms), time.time_ns() // 1_000_000 + AHEAD_MS)
