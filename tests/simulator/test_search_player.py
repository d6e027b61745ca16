"""What the search agent's limits allow a player that makes no mistake, and what pruning adds."""

from dataclasses import replace
from statistics import fmean

import pytest

from headrace.agents.search import vocabulary as words
from headrace.agents.search.harness import Limits
from headrace.agents.search.tasks import Split, Task, hops_of, make_task, task_id
from tests.simulator.sampling import Attempt
from tests.simulator.search import SearchEpisode
from tests.simulator.search_player import play_perfectly
from tests.simulator.search_values import search_values

DEFAULT = Limits()


def tasks(hops: int, count: int = 25) -> list[Task]:
    identifiers = [task_id(Split.HELD_OUT, number) for number in range(count * 8)]
    return [make_task(each) for each in identifiers if hops_of(each) == hops][:count]


def played(hops: int, limits: Limits) -> list[SearchEpisode]:
    return [play_perfectly(task, limits) for task in tasks(hops)]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_with_pruning_every_question_can_be_answered(hops: int) -> None:
    assert [episode.reward() for episode in played(hops, DEFAULT)] == pytest.approx([2.0] * 25)


def test_without_pruning_no_question_of_three_hops_can_be_answered_within_the_same_budget() -> None:
    episodes = played(3, replace(DEFAULT, pruning=False))
    assert max(episode.score().components["trajectory_recall"].value for episode in episodes) < 1
    assert fmean(episode.reward() for episode in episodes) / 2 < 0.4


def test_without_pruning_one_and_two_hops_still_fit() -> None:
    for hops in (1, 2):
        episodes = played(hops, replace(DEFAULT, pruning=False))
        assert fmean(episode.reward() for episode in episodes) / 2 > 0.95


def test_values_tell_pruning_by_hops_and_its_accuracy() -> None:
    values = search_values([Attempt(episode) for hops in (1, 3) for episode in played(hops, DEFAULT)])
    assert values["pruned_1"] == 0
    assert values["pruned_3"] == 1
    assert values["prune_accuracy"] == 1
    assert values["longest_streak"] == 1
    assert values["reward"] == values["reward_3"] == pytest.approx(1.0)
    assert "reward_2" not in values


def test_removed_evidence_lowers_the_accuracy() -> None:
    task = tasks(3, 1)[0]
    episode = SearchEpisode(task)
    first = task.chain[0]
    for text in (
        f"search_corpus {first.triple.subject} {first.triple.relation} <end>",
        f"prune_chunks {first.chunk_id} <end>",
        "answer <end>",
    ):
        episode.act(words.encode(text))
    values = search_values([Attempt(episode)])
    assert values["prune_accuracy"] == 0
    assert values["output_recall"] == 0
    assert values["trajectory_recall"] == pytest.approx(1 / 3)
