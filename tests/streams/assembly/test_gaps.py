"""Gaps agree with a set of the missing numbers, and take memory proportional to their number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.assembly.gaps import count, first_numbers, gaps_between, gaps_of, in_gap, ranges

numbers = st.sets(st.integers(0, 60))


@given(numbers, st.integers(0, 40), st.integers(0, 60))
def test_gaps_are_the_missing_numbers(there: set[int], begin: int, end: int) -> None:
    gaps = gaps_between(sorted(number for number in there if number >= begin), begin, end)
    missing = [number for number in range(begin, end) if number not in there]
    assert [number for number in range(100) if in_gap(gaps, number)] == missing
    assert (count(gaps), first_numbers(gaps, 5), first_numbers(gaps, 99)) == (len(missing), missing[:5], missing)
    assert gaps_of(ranges(gaps)) == gaps == gaps_of((number, number + 1) for number in missing)


@pytest.mark.parametrize("wrong", [[(3, 3)], [(5, 4)], [(3, 6), (5, 7)], [(7, 9), (1, 2)], [(-1, 2)], [(1, 2**40)]])
def test_invalid_ranges_are_refused(wrong: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="gap"):
        gaps_of(wrong)
