"""Which engine serves a call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.engine_choice import EngineChoice, EngineLimits

NAMES = [f"http://gpu{number}:8000" for number in range(5)]
KEYS = [f"prefix {number}".encode() for number in range(400)]


def choice(names: list[str] | None = None, **limits: float) -> EngineChoice:
    return EngineChoice(names or NAMES, EngineLimits(**limits))  # type: ignore[arg-type]


def test_a_key_always_goes_to_the_same_engine_and_keys_are_spread() -> None:
    engines, again = choice(), choice(NAMES[::-1])
    first = [engines.ranked(key)[0] for key in KEYS]
    assert first == [again.ranked(key)[0] for key in KEYS]
    assert min(first.count(name) for name in NAMES) > len(KEYS) / len(NAMES) / 2


def test_only_the_keys_of_an_engine_that_leaves_move() -> None:
    before, after = choice(), choice(NAMES[1:])
    for key in KEYS:
        if before.ranked(key)[0] != NAMES[0]:
            assert after.ranked(key)[0] == before.ranked(key)[0]


def test_a_full_engine_passes_calls_to_the_next() -> None:
    engines = choice(in_flight=1)
    ranked = engines.ranked(b"key")
    assert [engines.take(b"key", 0) for _ in range(6)] == [*ranked, None]
    assert not engines.has_room(0)
    engines.give_back(ranked[3])
    assert engines.take(b"key", 0) == ranked[3]


def test_an_engine_that_failed_is_left_out_for_a_while_and_longer_each_time() -> None:
    engines = choice(NAMES[:1], first_rest_s=1, longest_rest_s=5)
    name = NAMES[0]
    rests = []
    now = 0.0
    for _ in range(4):
        engines.failed(name, now)
        rests.append(engines.retry_after_s(now))
        assert engines.candidates(b"", now) == []
        now += rests[-1]
        assert engines.candidates(b"", now) == [name]
    assert rests == [1, 2, 4, 5]
    engines.succeeded(name)
    engines.failed(name, now)
    assert engines.retry_after_s(now) == 1


def test_calls_that_fail_together_count_once() -> None:
    engines = choice(NAMES[:1], first_rest_s=1)
    for _ in range(50):
        engines.failed(NAMES[0], 0.5)
    assert engines.retry_after_s(0.5) == 1


def test_an_engine_may_ask_for_more_time_up_to_the_limit() -> None:
    engines = choice(NAMES[:1], first_rest_s=1, longest_rest_s=5)
    engines.failed(NAMES[0], 0, at_least_s=3)
    assert engines.retry_after_s(0) == 3
    engines.failed(NAMES[0], 3, at_least_s=3_600)
    assert engines.retry_after_s(3) == 5


def test_tried_engines_are_not_tried_again() -> None:
    engines = choice()
    first, second, *_ = engines.ranked(b"key")
    assert engines.take(b"key", 0, [first]) == second
    assert engines.candidates(b"key", 0, NAMES) == []


@given(st.lists(st.sampled_from(["take", "give", "fail", "wait"]), max_size=60), st.binary(max_size=100))
def test_calls_in_flight_never_exceed_the_limit(steps: list[str], key: bytes) -> None:
    engines, now = choice(NAMES[:3], in_flight=2), 0.0
    held: list[str] = []
    for step in steps:
        if step == "take" and (name := engines.take(key, now)) is not None:
            held.append(name)
        elif step == "give" and held:
            engines.give_back(held.pop(0))
        elif step == "fail":
            engines.failed(engines.ranked(key)[0], now)
        elif step == "wait":
            now += 0.5
        assert engines.in_flight() == {name: held.count(name) for name in NAMES[:3]}
        assert max(engines.in_flight().values()) <= 2


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_engines_have_addresses_of_their_own(names: list[str]) -> None:
    with pytest.raises(ValueError, match="each with its own address"):
        EngineChoice(names, EngineLimits())
