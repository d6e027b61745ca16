"""Missing sequence numbers as ranges: memory grows with the number of gaps, not with the number of missing events.

    events 0, 1, 4 and 65535 arrived      gaps 2 … 3 and 5 … 65534      (2, 4, 5, 65535)

One ascending array holds the bounds of all ranges ``[start, end)``. A number is in a gap if the count of bounds less
than or equal to it is odd.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Gaps: TypeAlias = array[int]
else:  # array.array takes no parameters at run time before Python 3.12
    Gaps = array

NO_GAPS: Gaps = array("I")
"""Shared by all trajectories without gaps; never modified."""


def gaps_between(numbers: Iterable[int], begin: int, end: int) -> Gaps:
    """Returns the numbers of ``[begin, end)`` that are not in ``numbers``, which ascend strictly from ``begin`` up."""
    row = array("I")
    for number in numbers:
        if number >= end:
            break
        if number > begin:
            row.extend((begin, number))
        begin = number + 1
    if begin < end:
        row.extend((begin, end))
    return row or NO_GAPS


def gaps_of(ranges: Iterable[tuple[int, int]]) -> Gaps:
    """Returns these ascending ranges as gaps; adjacent ranges are merged. Raises ``ValueError`` if they do not ascend
    or if a number needs more than 32 bits.
    """
    row = array("I")
    try:
        for start, end in ranges:
            if end <= start or (row and start < row[-1]):
                raise ValueError(f"gap [{start}, {end}) is empty or does not follow the one before it")
            if row and start == row[-1]:
                row[-1] = end
            else:
                row.extend((start, end))
    except OverflowError as error:
        raise ValueError(f"a gap's bound takes more than 32 bits: {error}") from error
    return row or NO_GAPS


def in_gap(gaps: Gaps, number: int) -> bool:
    """Whether ``number`` is missing."""
    return bisect_right(gaps, number) % 2 == 1


def count(gaps: Gaps) -> int:
    """Returns how many numbers are missing."""
    return sum(end - start for start, end in ranges(gaps))


def ranges(gaps: Gaps) -> Iterator[tuple[int, int]]:
    """Returns the ranges ``[start, end)``, ascending."""
    return zip(gaps[::2], gaps[1::2], strict=True)


def first_numbers(gaps: Gaps, most: int) -> list[int]:
    """Returns the first ``most`` missing numbers."""
    found: list[int] = []
    for start, end in ranges(gaps):
        if len(found) >= most:
            break
        found.extend(range(start, min(end, start + most - len(found))))
    return found
