"""Waits for a client of Kafka that come to an end, whatever the client does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiokafka.errors import KafkaTimeoutError

T = TypeVar("T")

STOP_S = 5.0
"""A client that is given up waits so many seconds for its broker."""


async def within(seconds: float, work: Coroutine[Any, Any, T], what: str) -> T:
    """The result of ``work``; raises ``KafkaTimeoutError`` naming ``what`` where it has none after ``seconds``."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise KafkaTimeoutError(f"{what} did not end within {seconds:g} s")
        return task.result()
    finally:
        await end_task(task, STOP_S)


async def end_task(task: "asyncio.Future[Any]", within_s: float) -> None:
    """Cancel ``task``, again every ``within_s`` seconds until it ends; what it came to is not raised.

    The first cancellation takes it out of what it waits for. aiokafka then aborts an open transaction, and waits for
    that as long as the broker does not answer; the second takes it out of this.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=within_s)
    if not task.cancelled():
        task.exception()
