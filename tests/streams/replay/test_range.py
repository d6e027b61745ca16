"""Bounds as a user writes them, and the resulting spans."""

import pytest

from headrace.schemas.side_topics import OffsetRange
from headrace.streams.replay.range import Bound, parse_bound, span_of

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("2026-11-20", 1_795_132_800_000),
        ("2026-11-20T08:30:00Z", 1_795_163_400_000),
        ("2026-11-20T08:30:00.250+01:00", 1_795_159_800_250),
        ("2d", NOW - 2 * 86_400_000),
        ("90m", NOW - 90 * 60_000),
        ("0:7104,1:6998", {0: 7104, 1: 6998}),
    ],
)
def test_a_bound_is_a_time_or_offsets(text: str, bound: Bound) -> None:
    assert parse_bound(text, NOW) == bound


@pytest.mark.parametrize("text", ["", "yesterday", "0:1,", "0:1,0:2", "7", "-1d"])
def test_an_invalid_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names a partition twice" if text == "0:1,0:2" else "is neither a time"):
        parse_bound(text, NOW)


def test_without_bounds_the_span_is_the_partition() -> None:
    assert span_of(2, 5, 9, None, None) == OffsetRange(partition=2, start=5, stop=9, begins_log=False)
    assert span_of(2, 0, 9, None, {2: 7}) == OffsetRange(partition=2, start=0, stop=7, begins_log=True)


def test_a_partition_that_is_not_named_is_not_read() -> None:
    assert span_of(2, 0, 9, {1: 4}, None) is None


def test_a_span_that_ends_before_it_begins_is_empty() -> None:
    assert span_of(0, 0, 9, {0: 6}, {0: 4}) == OffsetRange(partition=0, start=6, stop=6, begins_log=False)


@pytest.mark.parametrize(("start", "stop"), [({0: 4}, None), (None, {0: 10}), ({0: 10}, None)])
def test_offsets_outside_the_log_are_refused(start: dict[int, int] | None, stop: dict[int, int] | None) -> None:
    with pytest.raises(ValueError, match="partition 0 holds the offsets 5 to 9"):
        span_of(0, 5, 9, start, stop)
