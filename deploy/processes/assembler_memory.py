"""Memory of a process that assembles: many objects that live as long as their trajectories, and buffers of megabytes.

Python's and glibc's defaults suit other programs: with them an eighth of the processor time goes into looking for
garbage where there is none, and into giving pages back to the system that are taken again at once.
"""

import ctypes
import gc

_COLLECT_AFTER = 20_000
"""Objects made before Python looks through the young ones. Trajectories have no cycles: it finds nothing."""

# <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_KEPT_BYTES = 64 * 1024 * 1024
"""Free memory that stays with the process: the output of some commits, and a batch of it compressed."""

_OWN_MAPPING_FROM = 16 * 1024 * 1024
"""Size from which a block is mapped for itself, and given back when it is freed: above any batch of output."""


def fit_memory_to_assembler() -> None:
    """Set the garbage collector and malloc of this process. Where malloc is not glibc's, it stays as it is."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_FROM)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
