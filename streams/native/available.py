"""The extension module, where it was built.

It is compiled when the package is installed and a C++ compiler is at hand (README.md beside this file). Without it
everything works, at a fraction of the speed.
"""

try:
    from headrace.streams.native import speedups
except ImportError:
    speedups = None  # type: ignore[assignment]

SPEEDUPS = speedups
"""The module, or ``None``."""
