"""The gateway's extension module, if it was built.

It is compiled on installation if a C++ compiler is available (see README.md in this folder). Everything works without
it, at several times the processor time per token.
"""

from collections.abc import Callable

from headrace.schemas.arrays import IntArray

try:
    from headrace.agents.gateway.native import speedups
except ImportError:
    speedups = None  # type: ignore[assignment]

PlainRun = tuple[int, int, bytes, bytes, str, bool, bytes | None]
PlainReader = Callable[[bytes, int, bytes | None, int], PlainRun | None]
"""See ``read_plain`` in ``speedups.pyi``."""


def reads_nothing(data: bytes, at: int, asked: bytes | None, longest: int) -> None:
    """Leave every line to Python."""


def decodes_nothing(json: bytes) -> None:
    """Leave every list to Python."""


SPEEDUPS = speedups
"""The module, or ``None``."""

read_plain: PlainReader = reads_nothing if speedups is None else speedups.read_plain
decode_ids: Callable[[bytes], bytes | None] = decodes_nothing if speedups is None else speedups.decode_ids
encode_ids: Callable[[IntArray], bytes] | None = None if speedups is None else speedups.encode_ids

NOT_BUILT = (
    "The C++ module headrace.agents.gateway.native was not built: the gateway reads the engines' answers in Python, "
    "which takes several times as long. Install a C++ compiler and Python's headers, then reinstall headrace (or run "
    "`make native` in a checkout)."
)
"""What a gateway without the module logs."""
