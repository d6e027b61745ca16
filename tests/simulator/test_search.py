"""A simulated attempt of the search agent is scored as the streams would score its events."""

from random import Random

import pytest

from headrace.agents.search.demonstrations import Mistakes
from headrace.streams.rewards.context1 import SEARCH_ANNEALED
from tests.agents.search.test_reward import TASKS, scored, turns_of
from tests.simulator.search import SearchEpisode, held_out_episodes, training_episodes


async def test_the_simulated_record_has_what_the_assembled_one_has() -> None:
    for task in TASKS:
        turns = turns_of(task, Mistakes())[:-1]
        episode = SearchEpisode(task)
        for turn in turns:
            episode.act(turn)
        trajectory, reward = await scored(task, turns)
        assert episode.is_done
        assert episode.reward() == pytest.approx(reward.total)
        simulated = episode.trajectory()
        assert simulated.answer == trajectory.answer
        assert simulated.status == trajectory.status
        assert simulated.versions == trajectory.versions
        for ours, theirs in zip(simulated.turns, trajectory.turns, strict=True):
            assert ours.pruned_ids == theirs.pruned_ids
            assert [(use.tool, use.status, use.result) for use in ours.tools] == [
                (use.tool, use.status, use.result) for use in theirs.tools
            ]


def test_beta_follows_the_version_that_samples() -> None:
    task = next(task for task in TASKS if len(task.chain) == 3)
    betas = {}
    for version in (0, 50, 100):
        episode = SearchEpisode(task, version, spec=SEARCH_ANNEALED)
        for turn in turns_of(task, Mistakes())[:-1]:
            episode.act(turn)
        betas[version] = episode.score().components["beta"].value
    assert betas == {0: 4.0, 50: 3.0, 100: 2.0}


def test_training_and_held_out_questions_differ() -> None:
    numbers = Random(0).sample(range(1000), 30)
    training = {training_episodes()(number, 0).harness.task.question for number in numbers}
    held_out = {held_out_episodes()(number, 0).harness.task.question for number in numbers}
    assert not training & held_out
