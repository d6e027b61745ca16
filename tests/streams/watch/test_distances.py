"""Distances against values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.watch.distances import (
    correlation,
    deviation,
    kolmogorov_smirnov,
    total_variation,
    wasserstein,
)

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def test_a_shift_by_one_has_distance_one() -> None:
    assert wasserstein([0, 1], [1, 2]) == 1.0
    assert kolmogorov_smirnov([0, 1], [1, 2]) == 0.5


def test_samples_of_different_sizes_are_compared_by_their_shares() -> None:
    assert wasserstein([0], [0, 0, 4]) == pytest.approx(4 / 3)
    assert kolmogorov_smirnov([0], [0, 0, 4]) == pytest.approx(1 / 3)
    assert kolmogorov_smirnov([1, 2, 3], [4, 5]) == 1.0


def test_the_deviation_divides_by_n_minus_one() -> None:
    assert deviation([1, 3]) == pytest.approx(2**0.5)
    assert deviation([7]) == 0.0


def test_a_line_has_correlation_one_and_its_slope() -> None:
    found = correlation([1, 2, 3], [5, 7, 9])
    assert found is not None
    assert found == (pytest.approx(1.0), pytest.approx(2.0))
    assert correlation([1, 1, 1], [5, 7, 9]) is None
    assert correlation([1, 2], [5, 7]) is None


def test_total_variation_counts_what_has_moved() -> None:
    assert total_variation({"a": 0.5, "b": 0.5}, {"a": 0.2, "c": 0.8}) == pytest.approx(0.8)


@given(SAMPLES, SAMPLES)
def test_distances_are_symmetric_and_zero_only_for_equal_samples(x: list[float], y: list[float]) -> None:
    assert wasserstein(x, y) == pytest.approx(wasserstein(y, x))
    assert kolmogorov_smirnov(x, y) == pytest.approx(kolmogorov_smirnov(y, x))
    assert 0 <= kolmogorov_smirnov(x, y) <= 1
    assert wasserstein(x, x) == kolmogorov_smirnov(x, x) == 0


@given(SAMPLES, st.floats(0, 100))
def test_a_shift_moves_every_value_as_far(x: list[float], by: float) -> None:
    assert wasserstein(x, [value + by for value in x]) == pytest.approx(by, abs=1e-6)
