"""The experiment on the monitors: what its runs share, and what its intervals mean."""

import pytest

from headrace.streams.watch.planted.drifts import DRIFTS
from headrace.streams.watch.planted.hacks import HACKS
from tests.experiments.monitors import HONEST_START, at_most, measure, middle_of, tables

CLEAR = {name: HACKS[name] for name in ("endless-search", "unannealed-lambda")}


def test_a_hack_is_measured_with_and_without_honest_steps_after_it_began() -> None:
    alone = measure([100], 60, 25, HONEST_START, CLEAR)
    beside = measure([100], 60, 25, HONEST_START + 2, CLEAR)
    assert alone.hacks == beside.hacks
    assert (alone.honest_steps, beside.honest_steps) == (HONEST_START, HONEST_START + 2)
    assert all(len(runs) == 1 and runs[0] for runs in alone.hacks.values())


def test_a_hack_alarms_as_late_alone_as_beside_others() -> None:
    both = measure([101], 60, 25, HONEST_START, CLEAR)
    one = measure([101], 60, 25, HONEST_START, {"endless-search": HACKS["endless-search"]})
    assert one.hacks["endless-search"] == both.hacks["endless-search"]


def test_feedback_that_becomes_worse_slowly_is_seen() -> None:
    found = measure([100], 60, 80, HONEST_START, {"sour-feedback": DRIFTS["sour-feedback"]})
    assert "feedback_value" in found.hacks["sour-feedback"][0]


def test_no_false_alarm_in_many_steps_bounds_the_rate() -> None:
    assert at_most(0, 30_000) == pytest.approx(1.0, rel=0.01)
    assert at_most(2, 70_000) == pytest.approx(0.9, rel=0.01)


def test_the_interval_of_a_median_is_between_values_that_were_seen() -> None:
    assert middle_of(range(1, 101)) == "50.5 (41–60)"
    assert middle_of([3, 1, 2]) == "2"


def test_tables_of_results_without_honest_runs_say_nothing_of_false_alarms() -> None:
    found = measure([100], 60, 25, HONEST_START, CLEAR)
    result = {"ramp": 60, "steps": 25, "hacks": found.hacks, "false": {}, "honest_steps": 0}
    lines = tables([result])
    assert "ramp 60, 1 runs, 25 steps" in lines
    assert not any("in 10,000" in line for line in lines)
