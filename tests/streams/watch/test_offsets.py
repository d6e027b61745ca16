"""Offsets of difficulties: another mix changes nothing, what all of them have in common does."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.watch.distances import mean
from headrace.streams.watch.offsets import LEARNT_FROM, MAX_DIFFICULTIES, Offset, with_window, without_offsets


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


def test_so_many_difficulties_have_an_offset() -> None:
    offsets = with_window({}, {f"{number:04}": [1.0] for number in range(MAX_DIFFICULTIES + 5)}, 0.0)
    assert len(offsets) == MAX_DIFFICULTIES
    assert "0000" in offsets
    assert without_offsets({"new": [3.0], "0000": [2.0]}, offsets) == pytest.approx([1.0, 3.0]), "it never gets one"


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
