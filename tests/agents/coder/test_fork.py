"""A continuation of a recorded attempt starts with the files of the snapshot after its turn, and with its context."""

from pathlib import Path

import pytest

from headrace.agents.coder.rollouts import coder_agent
from headrace.agents.coder.tasks import Task
from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.fork import CannotFork, ForkPoint, fork_point
from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.protocol import SnapshotUnknown
from headrace.schemas import events as facts
from tests.agents.coder.noted import Noted, ScriptedModel
from tests.agents.coder.players import play, training_task


class Forked(Noted):
    """Keeps where its sandbox began, too."""

    def restored(self, snapshot_id: str, **fields: object) -> None:
        self.facts.append(facts.EnvironmentRestored(snapshot_id=snapshot_id, **fields))  # type: ignore[arg-type]


async def attempted(
    task: Task, turns: list[list[int]], folder: Path, *, snapshots: bool
) -> tuple[Noted, ScriptedModel]:
    noted, model, provider = Noted(task), ScriptedModel(turns), Local(folder, warn=False)
    agent = coder_agent(provider, snapshots=snapshots)
    await agent.episode(Conversation(model, noted), task, noted, 1.0)  # type: ignore[arg-type]
    provider.store.close()
    return noted, model


async def continued(task: Task, point: ForkPoint, turns: list[list[int]], folder: Path) -> tuple[Forked, ScriptedModel]:
    noted, model, provider = Forked(task), ScriptedModel(turns), Local(folder, warn=False)
    fork = coder_agent(provider).fork
    assert fork is not None
    try:
        await fork(Conversation(model, noted), task, noted, 1.0, point)  # type: ignore[arg-type]
    finally:
        provider.store.close()
    return noted, model


@pytest.mark.parametrize("turn", [1, 4, 6])
@pytest.mark.parametrize("snapshots", [True, False])
async def test_the_same_answers_after_a_turn_have_the_same_end(tmp_path: Path, turn: int, snapshots: bool) -> None:
    task = training_task(3, 2)
    _, end, turns = play(task)
    noted, whole = await attempted(task, turns, tmp_path / "parent", snapshots=snapshots)
    point = fork_point("t-0", dict(enumerate(noted.facts)), turn)
    fork, model = await continued(task, point, turns[turn:], tmp_path / ("parent" if snapshots else "other"))
    assert model.contexts == whole.contexts[turn:]
    assert model.turns == []
    trajectory, reward = fork.assembled()
    assert trajectory.defects == []
    assert (trajectory.status, trajectory.outcome) == (end.status, end.outcome)
    assert trajectory.sampled_tokens == sum(map(len, turns[turn:]))
    assert reward.total == 1.0
    restored = fork.of(facts.EnvironmentRestored)
    assert [each.source_trajectory_id for each in restored] == ["t-0"] * snapshots
    if snapshots:
        taken = [each.snapshot_id for each in noted.of(facts.EnvironmentSnapshotted)]
        assert restored[0].snapshot_id == taken[turn - 1]


async def test_a_snapshot_of_another_folder_is_named(tmp_path: Path) -> None:
    task = training_task(3, 2)
    _, _, turns = play(task)
    noted, _ = await attempted(task, turns, tmp_path / "parent", snapshots=True)
    point = fork_point("t-0", dict(enumerate(noted.facts)), 2)
    with pytest.raises(SnapshotUnknown):
        await continued(task, point, turns[2:], tmp_path / "other")


async def test_turns_that_the_harness_does_not_make_are_refused(tmp_path: Path) -> None:
    task = training_task(3, 2)
    _, _, turns = play(task)
    noted, _ = await attempted(task, turns, tmp_path, snapshots=False)
    point = fork_point("t-0", dict(enumerate(noted.facts)), 2)
    with pytest.raises(CannotFork, match="changed"):
        await continued(training_task(4, 1), point, turns[2:], tmp_path)
