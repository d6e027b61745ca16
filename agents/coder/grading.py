"""Compares what a candidate's functions returned with what they shall return.

    passed({"fee": (5, 8), "charge": (23, None)}, {"fee": (5, 8), "charge": (23, 30)})  →  {"fee"}

The expected values stay in this process. Code in the sandbox can print what it likes: only right values pass.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

LARGEST_VALUE = 10**12
"""Integers beyond count as wrong: their text could be long."""

Outputs: TypeAlias = Mapping[str, Sequence[int | None]]
"""Function → its result for each input; ``None`` where it raised, returned no integer, or was not reached."""


def passed(outputs: Outputs, expected: Mapping[str, Sequence[int]]) -> set[str]:
    """Return the functions whose results are all as expected; a function without results is not among them."""
    return {name for name, values in expected.items() if list(outputs.get(name, ())) == list(values)}


def as_output(value: object) -> int | None:
    """Return ``value`` if it is an integer that can be compared, else ``None``; ``True`` is no integer here."""
    return value if type(value) is int and abs(value) <= LARGEST_VALUE else None
