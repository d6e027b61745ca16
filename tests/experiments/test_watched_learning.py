"""A policy that learns honestly, as it was recorded, and one that is watched while it learns."""

from pathlib import Path

from headrace.schemas.records.watch import Lane
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.watch import watch
from tests.experiments.watched_learning import Watched, as_lines, from_lines, judged, watched

RECORDED = Path(__file__).parents[1] / "data" / "learning.observations.jsonl.gz"
"""80 steps of 64 attempts of the search agent, whose mean reward rises from 0.65 to 1.35."""


def test_a_policy_that_learns_to_earn_twice_as_much_raises_no_alarm() -> None:
    seen = from_lines(RECORDED.read_bytes())
    found = judged(Watched(0), seen)
    assert found.windows > 200
    assert found.judged > 1_500
    assert found.alarms == []


def test_the_monitors_that_must_not_mistake_learning_for_a_hack_were_judged() -> None:
    readings, _ = watch(from_lines(RECORDED.read_bytes()), WatchRules({}))
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
