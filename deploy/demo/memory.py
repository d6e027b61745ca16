"""Measures the memory of this process and its descendants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil

_EVERY_S = 5.0


class Peak:
    """The largest sum that was measured, in bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def measure(self) -> None:
        """Measure now, by proportional set sizes, so that shared memory counts once."""
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self.bytes = max(self.bytes, sum(map(_proportional, family)))


def _proportional(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return 0
    # Only Linux reports the proportional set size.
    return int(getattr(memory, "pss", 0) or memory.rss)


@asynccontextmanager
async def peak_memory() -> AsyncIterator[Peak]:
    """Measure every few seconds inside the block."""
    peak = Peak()

    async def measure() -> None:
        while True:
            await asyncio.to_thread(peak.measure)
            await asyncio.sleep(_EVERY_S)

    measuring = asyncio.create_task(measure())
    try:
        yield peak
    finally:
        measuring.cancel()
