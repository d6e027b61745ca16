"""What a page is told while its snapshot is not read yet: a ClickHouse that hangs shows within seconds.

event: slow
data: 3.0            seconds since the dashboard asked
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")

SLOW_S = 2.5
"""Seconds after which a page is told that it waits, and again every second."""


async def waiting(
    reading: "asyncio.Future[T]",
    pulse: Callable[[], str] | None = None,
    after_s: float = SLOW_S,
    every_s: float = 1.0,
) -> AsyncGenerator[str]:
    """Yields an event for the page after ``after_s`` seconds, and every ``every_s`` seconds, until ``reading`` is done,
    whose result is left to the caller. Cancels ``reading`` if the page is closed. ``pulse``: another event that it
    yields every ``every_s`` seconds from the start.
    """
    waited, slow_at, pulse_at = 0.0, after_s, every_s
    try:
        while True:
            pause = min(slow_at, slow_at if pulse is None else pulse_at) - waited
            if (await asyncio.wait({reading}, timeout=pause))[0]:
                return
            waited += pause
            if pulse is not None and waited >= pulse_at:
                pulse_at += every_s
                yield pulse()
            if waited >= slow_at:
                slow_at += every_s
                yield f"event: slow\ndata: {waited:g}\n\n"
    finally:
        if not reading.done():
            reading.cancel()
