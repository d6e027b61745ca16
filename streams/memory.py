"""Memory settings of processes that hold many records: objects that live as long as their batch, large buffers.

With the defaults of Python and glibc, an eighth of the processor time is spent on garbage collection that finds
nothing, and on returning pages to the system that are requested again immediately.
"""

import ctypes
import gc

_COLLECT_AFTER = 20_000
"""Allocations before Python collects the young generation. Records have no cycles, so it finds nothing."""

# <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_KEPT_BYTES = 64 * 1024 * 1024
"""Free memory that the process keeps: the output of several commits, and a compressed batch of it."""

_OWN_MAPPING_FROM = 16 * 1024 * 1024
"""Size from which a block has its own mapping, which is returned when it is freed: larger than any output batch."""


def collect_rarely() -> None:
    """Configure the garbage collector of this process for many records."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def fit_memory_to_folds() -> None:
    """Configure the garbage collector and malloc of a process that folds events; only glibc's malloc is changed.

    It may hold some 100 MiB more.
    """
    collect_rarely()
    _keep_freed_memory()


def fit_memory_to_inserts() -> None:
    """The same for a process that fills Arrow tables.

    Arrow's own allocator returns each table's pages to the system, which clears them again for the next one: a sixth
    of the sink's processor time.
    """
    import pyarrow

    collect_rarely()
    _keep_freed_memory()
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())


def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_FROM)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
