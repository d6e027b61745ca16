"""The extension module, if it was built.

It is compiled on installation if a C++ compiler is available (see README.md in this folder). Everything works without
it, at a fraction of the speed.
"""

try:
    from headrace.streams.native import speedups
except ImportError:
    speedups = None  # type: ignore[assignment]

SPEEDUPS = speedups
"""The module, or ``None``."""

NOT_BUILT = (
    "The C++ module headrace.streams.native was not built: events are processed in Python, at a fraction of the speed. "
    "Install a C++ compiler and Python's headers, then reinstall headrace (or run `make native` in a checkout)."
)
"""What a process that would use the module logs without it."""
