"""The orchestrator can be sampled like any system."""

import pytest

from headrace.agents.swarm.rollouts import AGENT, SWARM_TASKS, swarm_agent
from headrace.agents.swarm.tasks import LEVELS, Source, Split, split_of


@pytest.mark.parametrize("level", range(3))
def test_a_level_bounds_the_lookups_of_its_tasks(level: int) -> None:
    (least, most), hops = list(LEVELS.values())[level]
    for number in range(40):
        task = SWARM_TASKS.training(1_000_000 + number, level)
        low, high = (least, most) if task.source is Source.WIDE else hops
        assert low <= len(task.evidence) <= high


def test_training_and_held_out_tasks_are_of_their_splits() -> None:
    assert split_of(SWARM_TASKS.training(1_000_000).question) is Split.TRAIN
    assert split_of(SWARM_TASKS.held_out(0).question) is Split.HELD_OUT


def test_the_agent_names_its_harness() -> None:
    agent = swarm_agent("swarm-7")
    assert (agent.name, agent.harness_version) == (AGENT, "swarm-1")
