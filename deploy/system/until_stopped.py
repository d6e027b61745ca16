"""Runs a worker's coroutine until the process is stopped by a signal."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from headrace.deploy.system.notify import notify_ready


def until_stopped(run: Callable[..., Awaitable[None]]) -> int:
    """Run ``run(stop=…, ready=…)``; SIGTERM and SIGINT set ``stop``. Returns 0, the status of a clean exit."""

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await run(stop=stop, ready=notify_ready)

    asyncio.run(serve())
    return 0
