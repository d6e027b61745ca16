"""Simulated attempts of the orchestrator are scored by the shipped specs, with the weights of their version."""

import pytest

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.subagents import Skill
from headrace.agents.swarm.tasks import Source, Split, make_task, task_id
from headrace.schemas.events import EndStatus
from headrace.streams.rewards.swarm import ARMS, SHORT_ANNEALED_AT
from tests.simulator.swarm import SwarmEpisode, held_out_episodes, training_episodes

TASK = next(
    task
    for number in range(99)
    if (task := make_task(task_id(Split.TRAIN, number))).source is Source.WIDE and len(task.evidence) == 8
)
RELATION = TASK.evidence[0].triple.relation
TURNS = (
    f"create_subagent alpha {RELATION} <end>",
    " ".join(f"assign_task alpha {chunk.triple.subject}" for chunk in TASK.evidence) + " <end>",
    f"answer {' '.join(TASK.targets)} <end>",
)


def played(arm: str, version: int = 0, skill: Skill | None = None) -> SwarmEpisode:
    episode = SwarmEpisode(TASK, version, spec=ARMS[arm], skill=skill)
    for turn in TURNS:
        assert not episode.is_done
        episode.act(words.encode(turn))
    assert episode.is_done
    return episode


@pytest.mark.parametrize(
    ("arm", "version", "reward"),
    [("none", 0, 1.0), ("annealed", 0, 1.44), ("annealed", SHORT_ANNEALED_AT, 1.0), ("never-annealed", 10**6, 1.44)],
)
def test_shaping_is_paid_with_the_weight_of_the_version(arm: str, version: int, reward: float) -> None:
    assert played(arm, version, Skill(1.0, 0.0)).reward() == pytest.approx(reward)


def test_the_record_counts_steps_as_the_streams_do() -> None:
    record = played("none", skill=Skill(1.0, 0.0)).trajectory()
    assert (record.critical_steps, record.total_steps) == (3 + 2, 3 + 8 * 2)
    assert (record.subagents_assigned, record.subagents_finished) == (8, 8)
    assert (record.status, record.outcome) == (EndStatus.COMPLETED, 1.0)


def test_attempts_at_a_training_task_differ_in_their_luck_and_held_out_ones_do_not() -> None:
    training, held_out = training_episodes(ARMS["none"]), held_out_episodes(ARMS["none"])
    search = words.encode("find_page ada <end>")

    def luck(episode: SwarmEpisode) -> tuple[int, ...]:
        for _ in range(episode.task.budget):
            episode.act(search)
        return tuple(episode.observe())

    assert len({luck(training(3, 0)) for _ in range(8)}) > 1
    assert len({luck(held_out(3, version)) for version in range(4)}) == 1
