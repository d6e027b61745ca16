"""Hooks for processes that end without running ``atexit``.

Children of ``multiprocessing`` and workers of Celery's prefork pool end with ``os._exit``, but each has a hook of its
own. A process that calls ``os._exit`` itself, or is ended by an unhandled signal, runs no hook: close the SDK first.
"""

import multiprocessing.util
import sys
from collections.abc import Callable


def call_at_end(close: Callable[[], object], priority: int = 0) -> None:
    """Call ``close`` when this process ends as a child of ``multiprocessing`` or as a worker of Celery. What has a
    higher ``priority`` is called first in the former; in the latter, what was passed first."""
    multiprocessing.util.Finalize(None, close, exitpriority=priority)
    # A worker of Celery has imported this module already; other processes do not need it.
    worker_ends = getattr(sys.modules.get("celery.signals"), "worker_process_shutdown", None)
    if worker_ends is not None:
        worker_ends.connect(lambda **_: close(), weak=False)
