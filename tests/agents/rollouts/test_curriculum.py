"""The curriculum: never out of range, every level reachable, the same by seed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.rollouts.curriculum import (
    CurriculumSettings,
    CurriculumState,
    GroupResult,
    after,
    level_of,
    resumed,
    start,
)

SETTINGS = CurriculumSettings(window=4)

rates = st.floats(0, 1, allow_nan=False)


@st.composite
def settings_of(draw: st.DrawFn) -> CurriculumSettings:
    lower, upper = sorted(draw(st.lists(rates, min_size=2, max_size=2, unique=True)))
    return CurriculumSettings(
        raise_at=upper, lower_at=lower, window=draw(st.integers(1, 5)), review=draw(st.floats(0, 0.9))
    )


def folded(state: CurriculumState, found: Sequence[float], settings: CurriculumSettings) -> CurriculumState:
    for rate in found:
        state = after(state, GroupResult(state.level, rate), settings)
    return state


@given(
    settings=settings_of(),
    levels=st.integers(1, 6),
    results=st.lists(st.tuples(st.none() | st.integers(0, 7), rates)),
    seed=st.integers(0, 997),
)
def test_a_level_is_never_out_of_range_and_moves_one_at_a_time(
    settings: CurriculumSettings, levels: int, results: list[tuple[int | None, float]], seed: int
) -> None:
    state = start(settings, levels)
    for number, (level, rate) in enumerate(results):
        before, state = state, after(state, GroupResult(level, rate), settings)
        assert 0 <= state.level < levels
        assert abs(state.level - before.level) <= 1
        assert len(state.rates) <= settings.window
        assert 0 <= level_of(state, settings, number=number, seed=seed) <= state.level
        if level != before.level:
            assert state == before, "a result of another level counts"


@given(settings=settings_of(), levels=st.integers(1, 6))
def test_every_level_is_reachable_and_so_is_the_first_again(settings: CurriculumSettings, levels: int) -> None:
    state = start(settings, levels)
    for level in range(levels):
        assert state.level == level
        state = folded(state, [1.0] * settings.window, settings)
    for level in reversed(range(levels)):
        assert state.level == level
        state = folded(state, [0.0] * settings.window, settings)
    assert state.level == 0


@given(rate=st.floats(0.1, 0.7, exclude_min=True, exclude_max=True))
def test_between_the_thresholds_nothing_moves(rate: float) -> None:
    assert folded(CurriculumState(1, 3), [rate] * 50, SETTINGS).level == 1


def test_a_move_needs_a_whole_window_since_the_latest_one() -> None:
    state = folded(start(SETTINGS, 3), [1.0] * 3, SETTINGS)
    assert (state.level, state.pass_rate) == (0, 1.0)
    state = folded(state, [1.0], SETTINGS)
    assert (state.level, state.rates, state.pass_rate) == (1, (), None)
    assert folded(state, [0.0] * 3, SETTINGS).level == 1
    assert folded(state, [0.0] * 4, SETTINGS).level == 0


def test_easier_levels_are_reviewed_as_often_as_the_setting_says() -> None:
    state = CurriculumState(2, 3)
    drawn = Counter(level_of(state, SETTINGS, number=number, seed=1) for number in range(4000))
    assert drawn[2] / 4000 == pytest.approx(1 - SETTINGS.review, abs=0.03)
    assert drawn[0] / 4000 == pytest.approx(SETTINGS.review / 2, abs=0.03)
    none = CurriculumSettings(review=0)
    assert {level_of(state, none, number=number, seed=1) for number in range(100)} == {2}


@given(seed=st.integers(0, 997), number=st.integers(0, 10**6))
def test_the_level_of_a_task_is_a_function_of_seed_and_number(seed: int, number: int) -> None:
    state = CurriculumState(2, 3)
    assert level_of(state, SETTINGS, number=number, seed=seed) == level_of(state, SETTINGS, number=number, seed=seed)


def test_seeds_draw_different_levels() -> None:
    drawn = [[level_of(CurriculumState(2, 3), SETTINGS, number=n, seed=seed) for n in range(60)] for seed in (0, 1)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(("level", "at"), [(None, 0), (2, 2), (3, 0), (-1, 0)])
def test_a_restarted_run_goes_on_at_its_level_if_there_is_such_a_level(level: int | None, at: int) -> None:
    assert resumed(level, SETTINGS, 3) == CurriculumState(at, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lower_at": 0.7}, "lower_at"),
        ({"raise_at": 1.1}, "raise_at"),
        ({"window": 0}, "window"),
        ({"passes_at": 0.0}, "passes_at"),
        ({"review": 1.0}, "review"),
        ({"first": -1}, "first"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CurriculumSettings(**fields)


def test_a_first_level_that_the_tasks_lack_is_refused() -> None:
    with pytest.raises(ValueError, match="first level is 3, and the tasks have 3 levels"):
        start(CurriculumSettings(first=3), 3)
