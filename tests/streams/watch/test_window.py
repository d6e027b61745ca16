"""Windows: when they end, and what a measure sees of them."""

import pytest

from headrace.schemas.records.watch import Lane
from headrace.streams.watch.window import (
    LARGEST,
    LARGEST_WITHOUT_VERSION,
    LEAST,
    Key,
    Measured,
    Row,
    View,
    averaged,
    ends_before,
    keys_of,
    row_of,
)
from tests.streams.watch.builders import ATTEMPTS, REWARDS, observed, rows


def row(version: int | None) -> Row:
    return Row("next", version, 1, {})


@pytest.mark.parametrize(
    ("count", "versions", "then", "ends"),
    [
        (LEAST - 1, (1,), 2, False),
        (LEAST, (1,), 2, True),
        (LEAST, (1,), 1, False),
        (LEAST, (1, 3), 2, False),
        (LEAST, (1, 3), 4, True),
        (LEAST, (1, None), 2, True),
        (LEAST, (1, None), None, False),
        (LEAST, (None,), 2, False),
        (LARGEST - 1, (1,), 1, False),
        (LARGEST, (1,), 1, True),
        (LARGEST, (None,), None, True),
    ],
)
def test_a_window_of_versions_ends_at_a_newer_one_or_when_it_is_large(
    count: int, versions: tuple[int | None, ...], then: int | None, ends: bool
) -> None:
    window = [row(versions[number % len(versions)]) for number in range(count)]
    assert ends_before(ATTEMPTS, window, row(then)) is ends
    assert ends_before(REWARDS, window, row(then)) is ends


@pytest.mark.parametrize("lane", [Lane.FATE, Lane.FEEDBACK, Lane.INPUT])
def test_other_windows_end_by_their_size_alone(lane: Lane) -> None:
    window = [row(1)] * LARGEST_WITHOUT_VERSION
    assert ends_before(Key(lane), window, row(1))
    assert not ends_before(Key(lane), window[1:], row(2))


def test_feedback_counts_by_its_signal_and_inputs_are_made_of_attempts_only() -> None:
    assert keys_of(observed("t", of=Lane.FEEDBACK).model_copy(update={"spec": "thumbs"})) == [
        Key(Lane.FEEDBACK, spec="thumbs")
    ]
    assert keys_of(observed("t", of=Lane.INPUT)) == []


def test_a_row_has_what_its_observation_says() -> None:
    told = {"labels": ["a", "b"], "tenant": "north", "difficulty": "3"}
    assert row_of(observed("t", version=4, turns=2.0).model_copy(update=told), 17) == Row(
        "t", 4, 17, {"turns": 2.0}, ("a", "b"), "s", "north", "3"
    )


def test_columns_and_pairs_are_of_rows_that_have_the_values_and_are_no_evaluations() -> None:
    view = View([*rows(2, x=1, y=[5, 6]), *rows(1, x=2), *rows(1, y=3), *rows(1, x=9, y=9, evaluates=1)])
    assert view.column("x") == [1.0, 1.0, 2.0]
    assert view.pairs("x", "y") == ([1.0, 1.0], [5.0, 6.0])
    assert [each.values.get("x") for each in view.acted] == [1.0, 1.0, 2.0, None]


def test_a_mean_needs_its_least_number_of_values() -> None:
    assert averaged([1.0, 3.0], 3) is None
    measured = averaged([1.0, 2.0, 6.0], 3)
    assert measured is not None
    assert measured == Measured(3.0, 3, pytest.approx(7**0.5))
