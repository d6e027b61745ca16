"""The event loop of the sender's thread: a fork can pause it, and it does not block while a name is resolved.

A fork copies all locks in their present state, but only the forking thread. A lock that the sender's thread holds at
that moment (of libc's resolver, of the lazy initialisation of a library, of a logging handler) stays held in the child
for ever. Therefore, before a fork, the thread is paused in its wait for the network, where it holds no lock, and the
lazy initialisation of libraries is triggered when this module is imported.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - registers its fork hooks before ours: see below
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
"""Longest wait of a fork for the threads of the SDK. They are paused within a millisecond, unless a name server does
not answer; then the fork takes place anyway."""

RESOLVE_S = 20.0
"""Longest wait for the addresses of a name; after that, the previously resolved addresses are used."""

RESOLVER_NAME = "headrace-sdk-resolver"
"""Name of the threads that resolve names."""

# Initialises the codec for names, and pydantic: after a fork in the middle of that, the child could not use them.
"".encode("idna")
FeedbackGiven.model_validate_json(FeedbackGiven(signal="", value=0.0).model_dump_json(exclude={"comment"}))
SdkStatsReported.model_validate({"dropped": {"": 1}}).model_dump_json()


class Gate:
    """Synchronises a thread with forks: the thread leaves the gate for each wait, and while a fork holds the gate, the
    thread stays in its wait."""

    def __init__(self) -> None:
        self.busy_since = 0.0
        """When the thread left its last wait (``time.monotonic``), in seconds; 0 while it waits."""
        self.last_wait = time.monotonic()
        """When the thread entered its last wait, in seconds."""
        # Reentrant: a fork inside the hooks of another fork, on the same thread, does not wait for itself.
        self._lock = threading.RLock()
        self._thread = 0
        self._resolutions: set[threading.Event] = set()

    def enter(self) -> None:
        """Start work, as soon as no fork is in progress."""
        self._lock.acquire()
        self._thread = threading.get_ident()
        self.busy_since = time.monotonic()

    def leave(self) -> None:
        """Stop work, to wait for I/O."""
        self.last_wait = time.monotonic()
        self.busy_since = 0.0
        self._thread = 0
        self._lock.release()

    def hold(self, deadline: float) -> bool:
        """Keep the gate's thread in its wait until the caller's :meth:`release`. Return ``False`` if the thread did not
        reach a wait by ``deadline`` (``time.monotonic``, seconds), or is the caller. May be called repeatedly."""
        if self._thread == threading.get_ident() or not self._lock.acquire(
            timeout=max(0.0, deadline - time.monotonic())
        ):
            return False
        for resolution in list(self._resolutions):
            resolution.wait(max(0.0, deadline - time.monotonic()))
        return True

    def release(self) -> None:
        """Let the gate's thread continue, however often the caller holds it. Does nothing if the caller does not hold
        it."""
        if self._thread != threading.get_ident():
            with suppress(RuntimeError):  # raised by the release of a lock that is not held
                while True:
                    self._lock.release()

    def resolving(self) -> threading.Event:
        """Register the resolution of a name on another thread; the caller sets the returned event when it has ended."""
        self._resolutions = {each for each in self._resolutions if not each.is_set()}
        over = threading.Event()
        self._resolutions.add(over)
        return over


GATES: set[Gate] = set()
"""Gates of the running threads."""


class _Forks(threading.local):
    """Number of forks of a thread that are between their hooks: a signal handler may fork during another fork."""

    depth = 0


_FORKS = _Forks()


def hold_all() -> None:
    """Pause the thread of every sender, before a fork."""
    _FORKS.depth += 1
    deadline = time.monotonic() + FORK_WAIT_S
    for gate in list(GATES):
        gate.hold(deadline)


def release_all() -> None:
    """Let the threads continue, in the parent after a fork. Each gate checks whether it is held: a signal handler may
    have ended ``hold_all`` with an exception, and a program in C may have forked without it."""
    _FORKS.depth = max(0, _FORKS.depth - 1)
    if not _FORKS.depth:
        for gate in list(GATES):
            gate.release()


def forget_all() -> None:
    """Forget all gates, in the child after a fork: the parent's threads do not exist here."""
    GATES.clear()
    _FORKS.depth = 0


# concurrent.futures holds a lock that is not reentrant between its fork hooks. Hooks before a fork run in reverse order
# of registration. Since that module is imported first, its lock is still free in our hooks, so a signal handler that
# forks there does not deadlock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=hold_all, after_in_parent=release_all, after_in_child=forget_all)


class SenderLoop(asyncio.SelectorEventLoop):
    """An event loop that leaves its gate during waits and resolves names on separate threads.

    It does not use the default executor, which is shut down when the interpreter exits, while a short program still
    sends its events. A resolution that never returns does not block the loop.
    """

    _known: ClassVar[dict[Any, Any]] = {}

    def __init__(self, gate: Gate) -> None:
        """``gate``: the gate of the loop's thread."""
        self._gate = gate
        super().__init__(_Selector(gate))

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """Return the addresses of ``host``; raise ``OSError`` if there are none or it takes over ``RESOLVE_S``
        seconds."""
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
            except Exception as error:  # noqa: BLE001 - raised again by the caller
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
    """Leaves the gate while it waits."""

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
    """Return the position of ``thread`` as ``file.py:12 in function``; empty if it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
