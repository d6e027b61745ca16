"""Calls of the host's functions with a time limit, each on a thread of its own: Python cannot interrupt a call.

A call that exceeds its limit continues on its thread, and its result is ignored. Other calls use another thread, until
``MAX_STUCK`` are stuck; then calls fail at once until one of them ends.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast

A = TypeVar("A")
R = TypeVar("R")

MAX_STUCK: Final = 4
"""Most threads with a call that has exceeded its limit."""

THREAD_NAME: Final = "headrace-sdk-masking"
"""Name of the threads."""


class CallFailed(RuntimeError):
    """The function raised, exceeded its limit or could not be called; the message says which, without its argument."""


class _Worker:
    """A thread that runs one call after the other."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[tuple[Callable[[Any], Any], Any] | None] = SimpleQueue()
        self.results: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (order := self.orders.get()) is not None:
            function, argument = order
            try:
                self.results.put((True, function(argument)))
            except BaseException as error:  # noqa: BLE001 - whatever the host's function raises, its call has failed
                self.results.put((False, type(error)))


class TimedCalls:
    """Calls functions, one at a time. For use by one thread."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._stuck: list[_Worker] = []

    def call(self, function: Callable[[A], R], argument: A, limit_s: float) -> R:
        """Return ``function(argument)``; raise :class:`CallFailed` if it raises, or takes over ``limit_s`` seconds."""
        worker = self._worker or self._new_worker()
        self._worker = worker
        worker.orders.put((function, argument))
        try:
            is_done, result = worker.results.get(timeout=max(0.0, limit_s))
        except Empty:
            self._worker = None
            worker.orders.put(None)
            self._stuck.append(worker)
            raise CallFailed(f"it took over {limit_s:.3g} s") from None
        if not is_done:
            raise CallFailed(f"it raised {type.__dict__['__name__'].__get__(result)}")
        return cast(R, result)

    def close(self) -> None:
        """End the thread that waits for a call."""
        if self._worker is not None:
            self._worker.orders.put(None)
            self._worker = None

    def _new_worker(self) -> _Worker:
        self._stuck = [each for each in self._stuck if each.thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK:
            raise CallFailed(f"{MAX_STUCK} earlier calls have not ended")
        try:
            return _Worker()
        except RuntimeError as error:  # out of threads, or the interpreter ends
            raise CallFailed(f"no thread can be started ({error})") from error
