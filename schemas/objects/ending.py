"""Lets a process that used an object store end cleanly.

obstore completes its asynchronous calls on threads of its own runtime, which it never stops. A thread that still needs
the interpreter's lock, for instance to release the result, when the interpreter begins to finalize, aborts the process
(https://github.com/PyO3/pyo3-async-runtimes/issues/40). On a busy core that is half of the processes that end right
after a call.
"""

import atexit
import time
from functools import cache
from pathlib import Path

_THREAD = "tokio-rt-worker"
"""The name of each thread of obstore's runtime; the kernel keeps its first 15 characters."""

_IDLE = "SI"
"""States of a thread that waits, in ``/proc/PID/task/TID/stat``."""

_PAUSE_S = 0.005
_IDLE_PAUSES = 3
"""After how many pauses in a row the threads have to be found waiting. One that waits for the interpreter's lock gets
it in a pause, and is then running or done."""

_MOST_S = 2.0


@cache
def end_cleanly() -> None:
    """Make this process, when it ends, wait until obstore's threads are idle: 15 ms, and at most two seconds."""
    atexit.register(_wait_until_idle)


def _wait_until_idle() -> None:
    until = time.monotonic() + _MOST_S
    idle = 0
    while idle < _IDLE_PAUSES and time.monotonic() < until:
        time.sleep(_PAUSE_S)
        idle = 0 if any(state not in _IDLE for state in thread_states(_THREAD)) else idle + 1


def thread_states(name: str) -> list[str]:
    """Returns the state, a letter as in proc(5), of each of this process's threads of that name; none without /proc."""
    found = []
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # the thread has ended
            continue
        before, _, after = text.rpartition(")")
        if before.partition("(")[2] == name:
            found.append(after.split()[0])
    return found
