"""A continuation of a recorded attempt has its context, samples only what follows, and is rewarded for all evidence."""

from collections.abc import Sequence
from dataclasses import fields
from random import Random

import pytest

from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.fork import ForkPoint, fork_point
from headrace.agents.rollouts.replayed import NotTheSameContext
from headrace.agents.search.demonstrations import Mistakes
from headrace.agents.search.harness import HARNESS_VERSION
from headrace.agents.search.pruning import PRUNING_TASKS, TIGHT, BudgetedTask, pruning_agent
from headrace.schemas import events as facts
from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.drive import drive
from headrace.streams.rewards.registry import parse_rewards
from headrace.streams.topology import TOPOLOGY
from tests.agents.coder.noted import Noted, ScriptedModel
from tests.simulator.search import demonstrated

REWARDS = parse_rewards({"search": "search@5"})
FAULTLESS = Mistakes(**{mistake.name: 0.0 for mistake in fields(Mistakes)})
TASK = next(task for n in range(1_000_000, 1_000_200) if len((task := PRUNING_TASKS.training(n, 2)).task.chain) == 3)


def played(task: BudgetedTask) -> list[tuple[int, ...]]:
    """Return the turns of an attempt without mistakes."""
    return [call.sampled for call in demonstrated(task.task, Random(0), mistakes=FAULTLESS, limits=task.limits)[1]]


class NotedSearch(Noted):
    """Replaces the SDK's trajectory of an attempt of the search agent."""

    def __init__(self, task: BudgetedTask, trajectory_id: str = "t-1", **start: object) -> None:
        super().__init__(task)  # type: ignore[arg-type]
        self.trajectory_id = trajectory_id
        given = {"task_id": task.task_id, "agent": "search", "harness_version": HARNESS_VERSION, "task": task.facts}
        self.facts: list[Record] = [facts.TrajectoryStarted(**(given | start))]  # type: ignore[arg-type]

    def pruned(self, ids: Sequence[str], before: int, after: int) -> None:
        self.facts.append(facts.ContextPruned(pruned_ids=list(ids), tokens_before=before, tokens_after=after))

    def record(self) -> tuple[Trajectory, Reward]:
        """Return the trajectory and its reward by ``search@5``."""
        events = [
            (Envelope(f"{self.trajectory_id}-{seq}", fact.TYPE, "test", 1_000 + seq, self.trajectory_id, seq), fact)
            for seq, fact in enumerate(self.facts)
        ]
        records = drive(TOPOLOGY, events, rewards=REWARDS)
        [trajectory], [reward] = records["trajectories"], records["rewards"]
        assert isinstance(trajectory, Trajectory)
        assert isinstance(reward, Reward)
        return trajectory, reward


async def attempted(task: BudgetedTask, turns: Sequence[Sequence[int]]) -> tuple[NotedSearch, ScriptedModel]:
    noted, model = NotedSearch(task), ScriptedModel(turns)
    await pruning_agent().episode(Conversation(model, noted), task, noted, 1.0)  # type: ignore[arg-type]
    return noted, model


async def continued(
    task: BudgetedTask, point: ForkPoint, turns: Sequence[Sequence[int]]
) -> tuple[NotedSearch, ScriptedModel]:
    noted = NotedSearch(task, "t-2", parent_trajectory_id="t-1", fork_turn=point.turn)
    model, fork = ScriptedModel(turns), pruning_agent().fork
    assert fork is not None
    await fork(Conversation(model, noted), task, noted, 1.0, point)  # type: ignore[arg-type]
    return noted, model


@pytest.mark.parametrize("turn", range(1, len(played(TASK))))
async def test_the_same_answers_after_any_turn_earn_the_same_reward(turn: int) -> None:
    turns = played(TASK)
    noted, whole = await attempted(TASK, turns)
    expected = noted.record()[1]
    point = fork_point("t-1", dict(enumerate(noted.facts)), turn)
    fork, model = await continued(TASK, point, turns[turn:])
    assert model.contexts == whole.contexts[turn:]
    first, *_ = fork.of(facts.ModelCalled)
    assert (first.prefix_length, list(first.context_ids)) == (0, whole.contexts[turn])
    trajectory, reward = fork.record()
    assert trajectory.defects == []
    assert trajectory.sampled_tokens == sum(map(len, turns[turn:]))
    assert (reward.total, reward.components) == (expected.total, expected.components)
    assert expected.total == expected.maximum


def test_the_attempt_prunes() -> None:
    episode, _ = demonstrated(TASK.task, Random(0), mistakes=FAULTLESS, limits=TIGHT)
    assert any(turn.pruned_ids for turn in episode.turns)


async def test_a_context_that_the_harness_does_not_make_is_refused() -> None:
    noted, _ = await attempted(TASK, played(TASK))
    other = PRUNING_TASKS.training(1_000_999, 2)
    point = fork_point("t-1", dict(enumerate(noted.facts)), 2)
    with pytest.raises(NotTheSameContext, match="depends on more than its task"):
        await continued(other, point, [])
