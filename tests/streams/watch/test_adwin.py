"""ADWIN: where it cuts."""

from math import log, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.watch.adwin import LARGEST, cut, with_value


def test_a_constant_window_is_not_cut() -> None:
    assert cut([3.0] * 50) == (0.0, 0.0, 50)


def test_a_shift_is_cut_where_it_began() -> None:
    found = cut([0.1, 0.2] * 20 + [0.8, 0.9] * 20)
    assert found.strength > 1
    assert found.kept == 40
    assert abs(found.effect - 0.7) < 1e-9


def test_the_bound_is_that_of_the_formula() -> None:
    """0 and 2 ten times in turn, then 10 and 12: σ² = 40/38, 1/m = 0.1, ln(2/δ') = ln(80/δ)."""
    expected = 10 / sqrt(2 * 0.1 * 40 / 38 * log(80 / 1e-7))
    assert cut([0.0, 2.0] * 10 + [10.0, 12.0] * 10) == (pytest.approx(expected), pytest.approx(10.0), 20)


def test_a_shift_without_noise_has_a_finite_strength() -> None:
    """0 ten times, then 2: σ² within is 0, and no less than 1e-9 times the mean square around 0, σ² + mean² = 2."""
    expected = 2 / sqrt(2 * 0.2 * 1e-9 * 2 * log(40 / 1e-7))
    assert cut([0.0] * 10 + [2.0] * 10) == (pytest.approx(expected), pytest.approx(2.0), 10)


def test_too_few_values_are_not_cut() -> None:
    assert cut([0.0] * 4 + [9.0] * 5) == (0.0, 0.0, 9)
    assert cut([0.0] * 5 + [9.0] * 5).kept == 5


def test_the_window_is_bounded() -> None:
    window: list[float] = []
    for number in range(LARGEST + 10):
        window = with_value(window, float(number))
    assert len(window) == LARGEST
    assert window[0] == 10


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_noise_is_not_cut(seed: int) -> None:
    random = Random(seed)
    assert cut([random.gauss(0, 1) for _ in range(LARGEST)]).strength < 1
