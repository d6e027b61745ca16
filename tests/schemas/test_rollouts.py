"""The header in which a training record carries the rollout counts of its run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.headers import ROLLOUTS
from headrace.schemas.rollouts import RolloutCounts, rollouts_header, rollouts_in


@given(st.builds(RolloutCounts, scored=st.integers(1, 2**40), reward_sum=st.floats(-1e12, 1e12), groups=st.just(9)))
def test_counts_are_read_back_from_the_header(counts: RolloutCounts) -> None:
    assert rollouts_in([("ce_id", b"x"), rollouts_header(counts)]) == counts


def test_a_record_without_the_header_has_no_counts() -> None:
    assert rollouts_in([("ce_id", b"x")]) is None


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"\xff", b'{"scored":-1}', b'{"scored":1,"reward_sum":NaN}', b'{"scored":1,"reward_sum":1e400}',
        b'{"scored":1' + b"0" * 400 + b"}", b'{"scored":2,"reward_sum":2.1e12}', b'{"groups":1,"all_fail":2}',
    ],
)  # fmt: skip
def test_an_invalid_header_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(ValueError, match=ROLLOUTS):
        rollouts_in([(ROLLOUTS, value)])
