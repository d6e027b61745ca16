"""Ending a task that a client of Kafka may hold: one cancellation is not enough."""

import asyncio
from typing import Any


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
