"""The event loop of the sender's thread: it can be held still for a fork, and it never stands still for a name.

A fork copies every lock as it is, and no thread but the one that forked. What the sender's thread held at that moment
(the resolver's lock in libc, the lock of a library's first use, that of a logging handler) is held in the child for
ever. So before a fork the thread is brought to a place where it holds nothing, its wait for the network; and what
libraries set up at their first use is set up when this module is imported.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - so that its hooks are registered before ours: see there
import os
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, ClassVar

from headrace.schemas.events import FeedbackGiven, SdkStatsReported

FORK_WAIT_S = 1.0
"""Longest wait of a fork for the threads of the SDK. They are ready within a millisecond, unless a name is being
resolved by a server that does not answer: then the fork takes place anyway."""

RESOLVE_S = 20.0
"""Longest wait for a name's addresses. Those known from before are used then."""

RESOLVER_NAME = "headrace-sdk-resolver"
"""Name of the threads that resolve names."""

# A fork in the middle of these leaves the child without them: the codec that a name needs, and pydantic's first use.
"".encode("idna")
FeedbackGiven.model_validate_json(FeedbackGiven(signal="", value=0.0).model_dump_json(exclude={"comment"}))
SdkStatsReported.model_validate({"dropped": {"": 1}}).model_dump_json()


class Gate:
    """Passed by a thread around each of its waits, and closed by a fork: then the thread stays in its wait."""

    def __init__(self) -> None:
        self.busy_since = 0.0
        """When the thread left its last wait (``time.monotonic``), in seconds; 0 while it waits."""
        self.last_wait = time.monotonic()
        """When the thread entered its last wait, in seconds."""
        # Knows its owner: a fork inside the hooks of another, on the same thread, does not wait for itself.
        self._lock = threading.RLock()
        self._thread = 0
        self._resolutions: set[threading.Event] = set()

    def enter(self) -> None:
        """The thread goes to work, as soon as no fork is under way."""
        self._lock.acquire()
        self._thread = threading.get_ident()
        self.busy_since = time.monotonic()

    def leave(self) -> None:
        """The thread waits."""
        self.last_wait = time.monotonic()
        self.busy_since = 0.0
        self._thread = 0
        self._lock.release()

    def hold(self, deadline: float) -> bool:
        """Keep the thread in its wait until :meth:`release` by the thread that holds it; ``False`` where it did not
        come to one by ``deadline`` (``time.monotonic``, seconds), or is the one that asks. May be called again."""
        if self._thread == threading.get_ident() or not self._lock.acquire(
            timeout=max(0.0, deadline - time.monotonic())
        ):
            return False
        for resolution in list(self._resolutions):
            resolution.wait(max(0.0, deadline - time.monotonic()))
        return True

    def release(self) -> None:
        """Let the thread go on, however often the calling thread holds it; nothing where it does not."""
        if self._thread != threading.get_ident():
            with suppress(RuntimeError):  # raised by the release of a lock that is not held
                while True:
                    self._lock.release()

    def resolving(self) -> threading.Event:
        """A resolution begins, on another thread; to be set when it is over."""
        self._resolutions = {each for each in self._resolutions if not each.is_set()}
        over = threading.Event()
        self._resolutions.add(over)
        return over


GATES: set[Gate] = set()
"""Those of the threads that run."""


class _Forks(threading.local):
    """Forks of a thread that are between their hooks. A signal handler may fork in the middle of another fork's."""

    depth = 0


_FORKS = _Forks()


def hold_all() -> None:
    """Before a fork: every sender's thread is held still."""
    _FORKS.depth += 1
    deadline = time.monotonic() + FORK_WAIT_S
    for gate in list(GATES):
        gate.hold(deadline)


def release_all() -> None:
    """In the parent, after a fork. What is held is asked of the gates: a signal handler may have ended ``hold_all``
    with an exception, and a program in C may have forked without it."""
    _FORKS.depth = max(0, _FORKS.depth - 1)
    if not _FORKS.depth:
        for gate in list(GATES):
            gate.release()


def forget_all() -> None:
    """In the child, after a fork: its parent's threads are not here."""
    GATES.clear()
    _FORKS.depth = 0


# The executor of threads holds a lock of its own between its hooks, which no thread can take twice. Hooks before a fork
# run in the reverse of the order in which they are registered: imported before ours, its lock is free in ours, and a
# signal handler that forks there does not wait for itself.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=hold_all, after_in_parent=release_all, after_in_child=forget_all)


class SenderLoop(asyncio.SelectorEventLoop):
    """An event loop that passes a gate around its waits, and resolves names on threads of its own.

    The default executor would be gone when an interpreter exits, which is when a short program's events are sent; and
    a resolution that never returns must not stop what else the loop does.
    """

    _known: ClassVar[dict[Any, Any]] = {}

    def __init__(self, gate: Gate) -> None:
        """``gate`` is the thread's."""
        self._gate = gate
        super().__init__(_Selector(gate))

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """Addresses of ``host``; raises ``OSError`` where there are none, or none in ``RESOLVE_S`` seconds."""
        question = (host, port, family, type, proto, flags)
        answer: asyncio.Future[Any] = self.create_future()
        over = self._gate.resolving()

        def take(found: Any) -> None:
            if not answer.done():
                answer.set_result(found)

        def resolve() -> None:
            found: Any
            try:
                found = socket.getaddrinfo(host, port, family, type, proto, flags)
            except Exception as error:  # noqa: BLE001 - handed over to whoever asked
                found = error
            finally:
                over.set()
            with suppress(RuntimeError):  # the loop may be closed by now
                self.call_soon_threadsafe(take, found)

        threading.Thread(target=resolve, name=RESOLVER_NAME, daemon=True).start()
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await answer
        except TimeoutError as error:
            if question not in self._known:
                raise OSError(f"the name {host!r} was not resolved within {RESOLVE_S:g} s") from error
            return self._known[question]
        if isinstance(found, Exception):
            raise found
        self._known[question] = found
        return found


class _Selector(selectors.DefaultSelector):
    """Waits outside the gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._gate.leave()
        try:
            return super().select(timeout)
        finally:
            self._gate.enter()


def place_of(thread: threading.Thread) -> str:
    """Where ``thread`` is: ``file.py:12 in function``; empty where it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
