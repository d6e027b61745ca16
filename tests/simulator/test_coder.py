"""A simulated attempt of the coder is scored as the streams would score its events."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.agents.coder.demonstrations import Mistakes
from headrace.agents.coder.warm_runner import WarmRunner
from tests.agents.coder.players import play, training_task
from tests.agents.coder.test_episode import attempt
from tests.simulator.coder import CoderEpisode, TestCache, held_out_episodes, training_episodes


@pytest.fixture(scope="module")
def cache() -> Iterator[TestCache]:
    with WarmRunner() as runner:
        yield TestCache(runner)


async def test_the_simulated_record_has_what_the_assembled_one_has(cache: TestCache, tmp_path: Path) -> None:
    for number in range(6):
        task = training_task(number)
        _, _, turns = play(task, mistakes=Mistakes(), seed=number)
        episode = CoderEpisode(task, runner=cache)
        for turn in turns:
            episode.act(turn)
        noted, _, _ = await attempt(task, turns, tmp_path)
        trajectory, reward = noted.assembled()
        assert episode.is_done
        assert episode.reward() == pytest.approx(reward.total)
        simulated = episode.trajectory()
        assert simulated.answer == trajectory.answer
        assert (simulated.status, simulated.outcome) == (trajectory.status, trajectory.outcome)
        assert [turn.summarized for turn in simulated.turns] == [turn.summarized for turn in trajectory.turns]
        for ours, theirs in zip(simulated.turns, trajectory.turns, strict=True):
            assert [(use.tool, use.status, use.result, use.thinking_tokens) for use in ours.tools] == [
                (use.tool, use.status, use.result, use.thinking_tokens) for use in theirs.tools
            ]


def test_equal_files_are_tested_once(cache: TestCache) -> None:
    task = training_task(7, 1)
    _, _, turns = play(task)
    runs, hits = cache.runs, cache.hits
    for _ in range(2):
        episode = CoderEpisode(task, runner=cache)
        for turn in turns:
            episode.act(turn)
        assert episode.reward() == 1.0
    assert cache.runs - runs == 4
    assert cache.hits - hits >= 2


def test_training_and_held_out_tasks_differ(cache: TestCache) -> None:
    def asked(task: object) -> set[tuple[str, ...]]:
        return {task.specifications[name].words for name in task.targets}  # type: ignore[attr-defined]

    training = set().union(*(asked(training_episodes(cache)(number, 0).harness.task) for number in range(30)))
    held_out = set().union(*(asked(held_out_episodes(cache)(number, 0).harness.task) for number in range(30)))
    assert training
    assert not training & held_out
