"""Keeps pyarrow from importing pandas, which the sink does not use.

If pandas is installed, for example by the trainer's extra, pyarrow imports it with the first array made from Python
values. That took 1.2 of the 2.8 s of processor time between the start of a sink and its first insert, and 60 MB.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _Hidden(MetaPathFinder):
    """Finds no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ``ModuleNotFoundError`` for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden from pyarrow", name=fullname)
        return None


def hide_pandas_from_pyarrow() -> None:
    """Have pyarrow find no pandas from now on, unless it was found before; other imports of pandas work.

    For a process that converts nothing to or from pandas: pyarrow looks for it once.
    """
    finder = _Hidden()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(finder)
