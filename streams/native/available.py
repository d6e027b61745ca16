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
