"""Ids: in time order for facts, equal for equal content."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.ids import derived_id, uuid7


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_uuid7_has_the_standard_layout(unix_ms: int, entropy: bytes) -> None:
    value = uuid.UUID(uuid7(unix_ms, entropy))
    assert value.version == 7
    assert value.variant == uuid.RFC_4122
    assert value.int >> 80 == unix_ms


def test_later_ids_sort_later() -> None:
    assert uuid7(1_000) < uuid7(1_001)


def test_equal_parts_give_equal_ids_and_different_parts_different_ids() -> None:
    assert derived_id("a", "bc", 1) == derived_id("a", "bc", 1)
    assert derived_id("a", "bc", 1) != derived_id("ab", "c", 1)
    assert derived_id("trajectory.scored", "t-1", "search@1") == "df1a10c8-4049-50d2-953d-b40a3c82f549"
