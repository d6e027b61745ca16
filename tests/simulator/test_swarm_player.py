"""What the reward pays for, by players without mistakes: shaping that is never annealed pays for a lower accuracy."""

from functools import cache
from statistics import fmean

import pytest

from headrace.agents.swarm.tasks import Source, Split, make_task, task_id
from headrace.streams.rewards.swarm import ARMS
from tests.simulator.swarm import SwarmEpisode
from tests.simulator.swarm_player import WAYS, play_scripted

ALONE, USEFUL, REPEATED, USELESS = WAYS
TASKS = [make_task(task_id(Split.HELD_OUT, number)) for number in range(240)]


@cache
def played(arm: str, way: str, source: Source) -> list[SwarmEpisode]:
    return [play_scripted(task, WAYS[way], ARMS[arm]) for task in TASKS if task.source is source]


def outcome(way: str, source: Source) -> float:
    return fmean(episode.outcome for episode in played("none", way, source))


def reward(arm: str, way: str, source: Source) -> float:
    return fmean(episode.reward() for episode in played(arm, way, source))


def test_deep_tasks_are_solved_alone_and_every_way_to_assign_sub_tasks_costs_accuracy() -> None:
    assert outcome(ALONE, Source.DEEP) > 0.95
    assert max(outcome(way, Source.DEEP) for way in (USEFUL, REPEATED, USELESS)) < outcome(ALONE, Source.DEEP) - 0.1


def test_wide_tasks_need_sub_agents_for_each_entity_and_useless_ones_are_worse_than_none() -> None:
    assert outcome(USEFUL, Source.WIDE) > 0.9
    assert outcome(USELESS, Source.WIDE) < outcome(ALONE, Source.WIDE) < 0.65


@pytest.mark.parametrize("arm", ["never-annealed", "parallel-only"])
def test_without_an_anneal_the_largest_reward_of_a_deep_task_is_not_the_largest_accuracy(arm: str) -> None:
    best = max(WAYS, key=lambda way: reward(arm, way, Source.DEEP))
    assert best != ALONE
    assert outcome(best, Source.DEEP) < outcome(ALONE, Source.DEEP) - 0.15
    assert reward(arm, best, Source.DEEP) > reward(arm, ALONE, Source.DEEP) + 0.05


def test_without_shaping_the_best_ways_are_those_with_the_best_outcomes() -> None:
    for source, best in ((Source.DEEP, ALONE), (Source.WIDE, REPEATED)):
        assert max(WAYS, key=lambda way: reward("none", way, source)) == best


def test_ten_useless_sub_tasks_earn_nothing_for_finishing() -> None:
    episode = played("never-annealed", USELESS, Source.DEEP)[0]
    components = episode.score().components
    assert (components["parallel"].value, components["finish"].value) == (1.0, 0.0)
