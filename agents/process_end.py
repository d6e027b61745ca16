"""Ends of a process that do not run ``atexit``, and what to use there instead.

Children of ``multiprocessing`` and workers of Celery's prefork pool end with ``os._exit``; each has a hook of its own.
A process that calls ``os._exit`` by itself, or is ended by a signal that nobody handles, has none: close the SDK first.
"""

import multiprocessing.util
import sys
from collections.abc import Callable


def call_at_end(close: Callable[[], object]) -> None:
    """Have ``close`` called where this process ends as a child of ``multiprocessing`` or as a worker of Celery."""
    multiprocessing.util.Finalize(None, close, exitpriority=0)
    # Where the process is a worker of Celery, that is imported by now. Elsewhere there is no need to import it.
    worker_ends = getattr(sys.modules.get("celery.signals"), "worker_process_shutdown", None)
    if worker_ends is not None:
        worker_ends.connect(lambda **_: close(), weak=False)
