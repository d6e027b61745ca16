"""Schedules: exact at both ends, monotone between them, and values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.rewards.schedule import Schedule, Shape, constant, cosine, linear, step

ends = st.floats(-10, 10)
versions = st.integers(0, 2_000)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    since, span = draw(st.integers(0, 500)), draw(st.integers(0, 500))
    return Schedule(draw(st.sampled_from(list(Shape))), draw(ends), draw(ends), since, since + span)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (constant(2.0), {0: 2.0, 9999: 2.0}),
        (step(4.0, 2.0, at=50), {0: 4.0, 49: 4.0, 50: 2.0, 51: 2.0}),
        (linear(0.3, 0.0, until=200), {0: 0.3, 100: 0.15, 199: 0.0015, 200: 0.0, 9999: 0.0}),
        (linear(4.0, 2.0, since=100, until=200), {0: 4.0, 100: 4.0, 150: 3.0, 200: 2.0}),
        (cosine(1.0, 0.0, until=100), {0: 1.0, 25: 0.853553, 50: 0.5, 75: 0.146447, 100: 0.0}),
        (linear(1.0, 0.0, until=0), {0: 0.0}),
    ],
    ids=str,
)
def test_values_by_version(schedule: Schedule, values: dict[int, float]) -> None:
    assert {version: schedule.at(version) for version in values} == pytest.approx(values, abs=1e-6)


@given(schedules(), versions)
def test_the_last_value_holds_exactly_from_the_schedules_end(schedule: Schedule, version: int) -> None:
    assert schedule.at(schedule.until + version) == schedule.last


@given(schedules(), versions, versions)
def test_a_schedule_is_monotone(schedule: Schedule, early: int, late: int) -> None:
    early, late = sorted((early, late))
    low, high = sorted((schedule.first, schedule.last))
    rounding = 1e-9
    assert low - rounding <= schedule.at(early) <= high + rounding
    towards = 1 if schedule.last >= schedule.first else -1
    assert towards * (schedule.at(late) - schedule.at(early)) >= -rounding


def test_a_schedule_is_a_value() -> None:
    assert linear(0.3, 0.0, until=200) == linear(0.3, 0.0, until=200) != linear(0.3, 0.0, until=201)
    assert len({linear(1, 0, until=5), linear(1, 0, until=5)}) == 1


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (constant(0.5), "0.5"),
        (step(4, 2, at=50), "step 4 → 2 at version 50"),
        (linear(0.3, 0.0, until=200), "linear 0.3 → 0 until version 200"),
        (cosine(1, 0, since=10, until=90), "cosine 1 → 0 from version 10 until version 90"),
    ],
)
def test_a_schedule_prints_as_a_sentence(schedule: Schedule, text: str) -> None:
    assert str(schedule) == text


@pytest.mark.parametrize(("first", "since", "until"), [(float("nan"), 0, 1), (1.0, 5, 4), (1.0, -1, 4)])
def test_an_invalid_schedule_is_an_error(first: float, since: int, until: int) -> None:
    with pytest.raises(ValueError, match="a schedule"):
        linear(first, 0.0, since=since, until=until)
