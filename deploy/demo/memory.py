"""How much memory a process and everything it started take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil

_EVERY_S = 5.0


class Peak:
    """The largest sum seen, in bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def look(self) -> None:
        """Measure now: proportional set sizes, so that what processes share counts once."""
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self.bytes = max(self.bytes, sum(map(_proportional, family)))


def _proportional(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return 0
    # Only Linux divides shared pages among those who share them.
    return int(getattr(memory, "pss", 0) or memory.rss)


@asynccontextmanager
async def peak_memory() -> AsyncIterator[Peak]:
    """Measure every few seconds inside the block."""
    peak = Peak()

    async def measure() -> None:
        while True:
            await asyncio.to_thread(peak.look)
            await asyncio.sleep(_EVERY_S)

    measuring = asyncio.create_task(measure())
    try:
        yield peak
    finally:
        measuring.cancel()
