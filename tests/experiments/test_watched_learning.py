"""A policy that learns honestly, as it was recorded, and one that is watched while it learns."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.schemas.records.watch import Lane, Observation
from headrace.streams.watch.chart import CAP
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.monitors import MONITORS
from headrace.streams.watch.watch import watch
from tests.experiments.watched_learning import Watched, as_lines, from_lines, judged, watched

DATA = Path(__file__).parents[1] / "data"


def recorded(seed: int) -> list[Observation]:
    """80 steps of 64 attempts of the search agent, whose mean reward rises from 0.65 to 1.31 (seed 0), from 0.61 to
    1.31 (seed 2), or from 0.74 to 1.25 (seed 3)."""
    return from_lines((DATA / f"learning-{seed}.observations.jsonl.gz").read_bytes())


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_policy_that_learns_to_earn_twice_as_much_raises_no_alarm(seed: int) -> None:
    found = judged(Watched(seed), recorded(seed))
    assert found.windows > 200
    assert found.judged > 1_500
    assert found.alarms == []


def test_one_window_of_other_tasks_would_alarm_if_it_could_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = tuple(
        replace(each, rule=replace(each.rule, most_a_window=CAP)) if each.rule else each
        for each in MONITORS[Lane.ATTEMPT]
    )
    monkeypatch.setitem(MONITORS, Lane.ATTEMPT, unlimited)
    assert judged(Watched(3), recorded(3)).alarms == [("action_trigram", 67)]


def test_equal_rewards_of_a_policy_that_earns_more_would_alarm_without_the_exception_for_a_rise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unspared = tuple(replace(each, spared=None) if each.name == "identical" else each for each in MONITORS[Lane.REWARD])
    monkeypatch.setitem(MONITORS, Lane.REWARD, unspared)
    assert [monitor for monitor, _ in judged(Watched(2), recorded(2)).alarms] == ["identical"]


def test_the_monitors_that_must_not_mistake_learning_for_a_hack_were_judged() -> None:
    readings, _ = watch(recorded(0), WatchRules({}))
    compared = {
        name
        for each in readings
        if each.lane is not Lane.INPUT
        for name, reading in each.readings.items()
        if reading.expected is not None
    }
    assert compared >= {
        "action_mix",
        "few_calls",
        "turns",
        "tokens",
        "reward",
        "reward_ks",
        "identical",
    }


def test_learning_is_watched_and_its_observations_are_kept() -> None:
    found, seen = watched(0, 2, groups=4)
    assert len(found.rewards) == 2
    assert len(seen) == 2 * 2 * 4 * 8
    assert (found.windows, found.alarms) == (2, []), "the first step's attempts and rewards"
    assert from_lines(as_lines(seen)) == seen
    assert "2 windows, 0 values judged; alarms: none" in found.line()
