"""Offsets without records, derived from the offsets that the client returned."""

from itertools import pairwise

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.faust_shell.skipped_offsets import SkippedOffsets

PLACE, OTHER = TP("t", 0), TP("t", 1)


@given(offsets=st.sets(st.integers(0, 60), min_size=2).map(sorted), cuts=st.sets(st.integers(0, 60)))
def test_offsets_between_consecutive_records_hold_nothing(offsets: list[int], cuts: set[int]) -> None:
    passed = SkippedOffsets()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 61], strict=True):
        passed.note(PLACE, [offset for offset in offsets if start <= offset < end])
    assert passed.last(PLACE) == offsets[-1]
    for before, after in pairwise(offsets):
        if after > before + 1:
            assert not passed.holds_nothing(OTHER, before + 1, after)
            assert passed.holds_nothing(PLACE, before + 1, after)


def test_offsets_beyond_consecutive_records_are_unknown() -> None:
    passed = SkippedOffsets()
    passed.note(PLACE, [4, 5, 8])
    assert not passed.holds_nothing(PLACE, 5, 8)
    assert not passed.holds_nothing(PLACE, 0, 4)


def test_reading_from_an_earlier_offset_makes_no_gap() -> None:
    passed = SkippedOffsets()
    passed.note(PLACE, [10])
    passed.note(PLACE, [4, 7])
    assert not passed.holds_nothing(PLACE, 3, 4)
    assert passed.holds_nothing(PLACE, 5, 7)
    passed.forget(PLACE)
    passed.note(PLACE, [20])
    assert not passed.holds_nothing(PLACE, 8, 20)
