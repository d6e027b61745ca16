"""The header in which a training record tells of all rollouts of its run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.headers import ROLLOUTS
from headrace.schemas.rollouts import RolloutCounts, rollouts_header, rollouts_in


@given(st.builds(RolloutCounts, scored=st.integers(1, 2**40), reward_sum=st.floats(-1e12, 1e12), groups=st.just(9)))
def test_what_is_told_is_read(counts: RolloutCounts) -> None:
    assert rollouts_in([("ce_id", b"x"), rollouts_header(counts)]) == counts


def test_records_from_before_it_was_kept_tell_nothing() -> None:
    assert rollouts_in([("ce_id", b"x")]) is None


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"\xff", b'{"scored":-1}', b'{"scored":1,"reward_sum":NaN}', b'{"scored":1,"reward_sum":1e400}',
        b'{"scored":1' + b"0" * 400 + b"}", b'{"scored":2,"reward_sum":2.1e12}', b'{"groups":1,"all_fail":2}',
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(ValueError, match=ROLLOUTS):
        rollouts_in([(ROLLOUTS, value)])
