"""What a page is told while its snapshot is not read yet: a ClickHouse that hangs shows within seconds.

event: slow
data: 3.0            seconds since the dashboard asked
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")

SLOW_S = 2.5
"""Seconds after which a page is told that it waits, and again every second."""


async def waiting(reading: "asyncio.Future[T]", after_s: float = SLOW_S, every_s: float = 1.0) -> AsyncGenerator[str]:
    """Yields an event for the page after ``after_s`` seconds, and every ``every_s`` seconds, until ``reading`` is done,
    whose result is left to the caller. Cancels ``reading`` if the page is closed.
    """
    waited, pause = 0.0, after_s
    try:
        while not (await asyncio.wait({reading}, timeout=pause))[0]:
            waited += pause
            pause = every_s
            yield f"event: slow\ndata: {waited:g}\n\n"
    finally:
        if not reading.done():
            reading.cancel()
