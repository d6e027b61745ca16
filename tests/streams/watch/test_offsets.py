"""Offsets of difficulties: another mix changes nothing, what all of them have in common does."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.watch.baselines import BASELINE_WINDOWS
from headrace.streams.watch.distances import mean
from headrace.streams.watch.offsets import LEARNT_FROM, MAX_DIFFICULTIES, Offset, with_window, without_offsets
from headrace.streams.watch.window import LEAST


def test_the_first_window_is_its_mean_and_sets_the_offsets() -> None:
    values = {"1": [1.0, 1.2], "2": [1.6]}
    assert without_offsets(values, {}) == [1.0, 1.2, 1.6]
    offsets = with_window({}, values, mean([1.0, 1.2, 1.6]))
    assert (offsets["1"].tasks, offsets["2"].tasks) == (2, 1)
    assert mean(without_offsets(values, offsets)) == pytest.approx(mean([1.0, 1.2, 1.6]))


def test_a_new_difficulty_counts_once_it_has_an_offset() -> None:
    offsets = {"2": Offset(9, 0.3)}
    assert without_offsets({"2": [1.6], "3": [2.0]}, offsets) == pytest.approx([1.3])
    after = with_window(offsets, {"3": [2.0]}, 1.3)
    assert after["3"] == Offset(1, pytest.approx(0.7))
    assert after["2"] == offsets["2"]


def test_an_offset_stays_once_it_is_learnt() -> None:
    learnt = {"1": Offset(LEARNT_FROM, 0.5)}
    assert with_window(learnt, {"1": [9.0] * 8}, 0.0) == learnt
    nearly = {"1": Offset(LEARNT_FROM - 1, 0.5)}
    assert with_window(nearly, {"1": [9.0]}, 0.0)["1"].tasks == LEARNT_FROM


def test_offsets_of_two_difficulties_are_learnt_in_the_shortest_baseline_from_all_of_its_tasks() -> None:
    """What one difficulty takes longer after the baseline is no part of its offset, so it is seen for good."""
    offsets: dict[str, Offset] = {}
    for window in range(BASELINE_WINDOWS):
        offsets = with_window(offsets, {"1": [0.0] * (LEAST // 2), "2": [float(window)] * (LEAST // 2)}, 0.0)
    assert offsets["2"].mean == pytest.approx(mean(range(BASELINE_WINDOWS)))
    assert with_window(offsets, {"1": [9.0], "2": [9.0]}, 0.0) == offsets


def test_a_mix_of_more_than_a_hundred_difficulties_is_no_change_either() -> None:
    every = {f"{number:03}": [0.1 * number] for number in range(120)}
    value = mean(without_offsets(every, {}))
    offsets = with_window({}, every, value)
    for some in (list(every)[:10], list(every)[-10:]):
        assert mean(without_offsets({each: every[each] for each in some}, offsets)) == pytest.approx(value)


def test_so_many_difficulties_have_an_offset() -> None:
    offsets = with_window({}, {f"{number:04}": [1.0] for number in range(MAX_DIFFICULTIES + 5)}, 0.0)
    assert len(offsets) == MAX_DIFFICULTIES
    assert "0000" in offsets
    assert without_offsets({"new": [3.0], "0000": [2.0]}, offsets) == pytest.approx([1.0, 3.0]), "it never gets one"


def test_which_difficulties_have_an_offset_does_not_depend_on_the_order_within_a_window() -> None:
    values = {f"{number:04}": [1.0] for number in range(MAX_DIFFICULTIES + 5)}
    assert with_window({}, dict(reversed(values.items())), 0.0) == with_window({}, values, 0.0)


def test_without_room_for_another_difficulty_the_known_ones_are_still_learnt() -> None:
    full = with_window({}, {f"{number:04}": [1.0] for number in range(MAX_DIFFICULTIES)}, 0.0)
    after = with_window(full, {"0000": [3.0], "new": [5.0]}, 0.0)
    assert after == {**full, "0000": Offset(2, 2.0)}


def test_a_window_leaves_the_offsets_before_it_as_they_were() -> None:
    """Another run may have begun with them."""
    before = {"1": Offset(1, 0.5)}
    with_window(before, {"1": [9.0], "2": [9.0]}, 0.0)
    assert before == {"1": Offset(1, 0.5)}


@given(st.integers(0, 1000), st.floats(-1, 1))
def test_the_mix_changes_nothing_and_a_change_of_all_is_whole(seed: int, change: float) -> None:
    random, own = Random(seed), {"1": 1.1, "2": 1.6, "3": 2.0}
    offsets: dict[str, Offset] = {}
    found = []
    for window in range(40):
        by = change if window >= 20 else 0.0
        values = {name: [level + by] * random.randint(1, 30) for name, level in own.items()}
        found.append(mean(without_offsets(values, offsets)))
        offsets = with_window(offsets, values, found[-1])
    assert found[:20] == pytest.approx([found[0]] * 20)
    assert found[20:] == pytest.approx([found[0] + change] * 20)
