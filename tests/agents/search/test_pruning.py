"""Tasks under a budget: levels, ids and limits, and what the warm-up demonstrates."""

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest

from headrace.agents.search.pruning import (
    LEVELS,
    PRUNING_TASKS,
    ROOMY,
    TIGHT,
    hops_in,
    pruning_agent,
    warm_up_demonstrations,
)
from headrace.agents.search.tasks import Split, split_of
from headrace.agents.search.vocabulary import TOKEN_IDS
from tests.simulator.search_player import play_perfectly

NUMBERS = range(1_000_000, 1_000_060)


def test_levels_go_from_a_roomy_budget_to_a_tight_one_and_from_few_hops_to_many() -> None:
    for number, level in enumerate(LEVELS):
        tasks = [PRUNING_TASKS.training(each, number) for each in NUMBERS]
        assert {task.limits for task in tasks} == {level.limits}
        found = Counter(len(task.task.chain) for task in tasks)
        for hops, share in level.hops.items():
            assert abs(found[hops] / len(NUMBERS) - share) < 0.2
    assert PRUNING_TASKS.levels == ("1-2 hops, roomy", "1-2 hops", "1-3 hops")


def test_without_a_level_tasks_are_like_those_of_the_last() -> None:
    tasks = [PRUNING_TASKS.training(number) for number in NUMBERS]
    assert {task.limits for task in tasks} == {TIGHT}
    assert Counter(len(task.task.chain) for task in tasks)[3] > len(NUMBERS) / 3


def test_held_out_tasks_are_tight_never_trained_and_as_many_of_each_hops() -> None:
    tasks = [PRUNING_TASKS.held_out(number) for number in range(30)]
    assert Counter(hops_in(task.task_id) for task in tasks) == {1: 10, 2: 10, 3: 10}
    assert {split_of(task.task.question) for task in tasks} == {Split.HELD_OUT}
    assert {task.facts["budget"] for task in tasks} == {90}


def test_an_id_says_the_hops_and_no_other_id_does() -> None:
    for level in range(len(LEVELS)):
        task = PRUNING_TASKS.training(NUMBERS[0], level)
        assert hops_in(task.task_id) == len(task.task.chain)
    with pytest.raises(ValueError, match="is not a task id"):
        hops_in("search-train-000017")


def test_two_hops_fit_the_roomy_budget_without_a_prune_and_not_the_tight_one() -> None:
    tasks = [task for number in NUMBERS if len((task := PRUNING_TASKS.training(number, 1).task).chain) == 2][:8]
    for limits, answered in ((ROOMY, 1.0), (TIGHT, 0.0)):
        played = [play_perfectly(task, replace(limits, pruning=False)) for task in tasks]
        assert {each.score().components["output_recall"].value for each in played} <= {answered, 0.5}
        assert max(each.score().components["output_recall"].value for each in played) == max(answered, 0.5)


def test_the_warm_up_demonstrates_prunes_and_mostly_several_hops() -> None:
    shown = list(warm_up_demonstrations(0, 60))
    assert len(shown) == 60
    chosen = [
        token
        for each in chain.from_iterable(shown)
        for token, mine in zip(each.token_ids, each.mask, strict=True)
        if mine
    ]
    assert TOKEN_IDS["prune_chunks"] in chosen
    assert sum(len(episode) > 1 for episode in shown) > len(shown) / 2
    assert list(warm_up_demonstrations(0, 60)) == shown


def test_the_agent_can_be_resumed_and_forked() -> None:
    agent = pruning_agent()
    assert agent.resume is not None
    assert agent.fork is not None
