"""Waits for Kafka clients that end after a bounded time, whatever the client does."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka.errors import KafkaTimeoutError

T = TypeVar("T")

STOP_S = 5.0
"""Seconds that an abandoned client may wait for its broker."""


async def within(seconds: float, work: Coroutine[Any, Any, T], what: str) -> T:
    """Return the result of ``work``; raise a ``KafkaTimeoutError`` that names ``what`` if there is none after
    ``seconds``."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise KafkaTimeoutError(f"{what} did not end within {seconds:g} s")
        return task.result()
    finally:
        await end_task(task, STOP_S)


async def end_task(task: "asyncio.Future[Any]", within_s: float) -> None:
    """Cancel ``task``, and again every ``within_s`` seconds until it ends; its exception is not raised.

    The first cancellation interrupts its present wait. aiokafka then aborts an open transaction and waits until the
    broker answers; the second cancellation interrupts that wait.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=within_s)
    if not task.cancelled():
        task.exception()


@asynccontextmanager
async def stopped_within(seconds: float, stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancel the body if it has not ended ``seconds`` after ``stop`` was set, and raise ``TimeoutError``."""
    async with asyncio.timeout(None) as limit:

        async def begin() -> None:
            await stop.wait()
            limit.reschedule(asyncio.get_running_loop().time() + seconds)

        beginning = asyncio.ensure_future(begin())
        try:
            yield
        finally:
            beginning.cancel()
