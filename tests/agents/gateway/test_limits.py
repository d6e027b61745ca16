"""Token buckets: what is admitted never exceeds the burst and the rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.limits import Exceeded, Limiter, Rate, Unit

REQUESTS = {Unit.REQUESTS: Rate(per_s=2.0, burst=4.0)}


def test_a_burst_is_admitted_and_then_the_rate() -> None:
    limiter = Limiter(REQUESTS)
    assert [limiter.admit("k", {Unit.REQUESTS: 1}, 0.0) for _ in range(4)] == [None] * 4
    assert limiter.admit("k", {Unit.REQUESTS: 1}, 0.0) == Exceeded(Unit.REQUESTS, 0.5)
    assert limiter.admit("k", {Unit.REQUESTS: 1}, 0.5) is None
    assert limiter.admit("k", {Unit.REQUESTS: 1}, 0.5) is not None


def test_keys_have_their_own_buckets() -> None:
    limiter = Limiter(REQUESTS)
    assert limiter.admit("a", {Unit.REQUESTS: 4}, 0.0) is None
    assert limiter.admit("b", {Unit.REQUESTS: 4}, 0.0) is None


def test_nothing_is_taken_from_any_bucket_if_one_lacks() -> None:
    limiter = Limiter(REQUESTS | {Unit.BYTES: Rate(per_s=10.0, burst=100.0)})
    assert limiter.admit("k", {Unit.REQUESTS: 1, Unit.BYTES: 80}, 0.0) is None
    assert limiter.admit("k", {Unit.REQUESTS: 1, Unit.BYTES: 80}, 0.0) == Exceeded(Unit.BYTES, 6.0)
    assert limiter.admit("k", {Unit.REQUESTS: 3, Unit.BYTES: 20}, 0.0) is None


def test_the_longest_wait_is_reported() -> None:
    limiter = Limiter(REQUESTS | {Unit.BYTES: Rate(per_s=1.0, burst=100.0)})
    limiter.admit("k", {Unit.REQUESTS: 4, Unit.BYTES: 100}, 0.0)
    assert limiter.admit("k", {Unit.REQUESTS: 1, Unit.BYTES: 50}, 0.0) == Exceeded(Unit.BYTES, 50.0)


def test_a_request_larger_than_the_bucket_is_never_admitted() -> None:
    assert Limiter(REQUESTS).admit("k", {Unit.REQUESTS: 5}, 1e9) == Exceeded(Unit.REQUESTS, None)


def test_sampled_tokens_are_charged_afterwards() -> None:
    limiter = Limiter({Unit.TOKENS: Rate(per_s=100.0, burst=1000.0)})
    limiter.charge("k", Unit.TOKENS, 1500, 0.0)
    assert limiter.admit("k", {Unit.TOKENS: 100}, 0.0) == Exceeded(Unit.TOKENS, 6.0)
    limiter.charge("k", Unit.BYTES, 1500, 0.0)
    assert limiter.admit("k", {Unit.TOKENS: 100}, 6.0) is None


def test_keys_are_bounded() -> None:
    limiter = Limiter(REQUESTS, max_keys=3)
    for key in "abcd":
        limiter.admit(key, {Unit.REQUESTS: 4}, 0.0)
    assert len(limiter) == 3
    assert limiter.admit("a", {Unit.REQUESTS: 4}, 0.0) is None


@pytest.mark.parametrize(("per_s", "burst"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_must_be_positive(per_s: float, burst: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Rate(per_s, burst)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 4)), max_size=40))
def test_no_interval_admits_more_than_burst_and_rate(steps: list[tuple[float, float]]) -> None:
    limiter, now = Limiter(REQUESTS), 0.0
    admitted: list[tuple[float, float]] = []
    for pause, need in steps:
        now += pause
        if limiter.admit("k", {Unit.REQUESTS: need}, now) is None:
            admitted.append((now, need))
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            total = sum(need for _, need in admitted[first : last + 1])
            assert total <= 4.0 + 2.0 * (admitted[last][0] - admitted[first][0]) + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limiter = Limiter(REQUESTS)
    limiter.admit("k", {Unit.REQUESTS: 4}, 10.0)
    assert limiter.admit("k", {Unit.REQUESTS: 1}, 5.0) is not None
    assert limiter.admit("k", {Unit.REQUESTS: 1}, 10.5) is None
