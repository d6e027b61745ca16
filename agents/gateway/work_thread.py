"""One thread for the disk's work of an event loop.

    thread = WorkThread("journal")
    segments = await thread.run(lambda: spool.append(records, held=True))

``asyncio.to_thread`` costs twice the processor time per piece of work, for a future and a context of its own each, and
each call of the gateway waits for the disk.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class WorkThread:
    """Does one piece of work after the other. The thread starts with the first and ends with the process, or by
    :meth:`stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns on the thread, or raise its exception.

        ``work`` is done also if the caller is cancelled.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        self._jobs.put((loop, done, work))
        return await done

    def stop(self) -> None:
        """End the thread after what it was given."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, done, work = job
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - the caller raises it
                result, error = None, raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, done, result, error)


def _settle(done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if done.done():  # the caller was cancelled
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
