"""An attempt that stopped after any turn continues from there: no token twice, the same end, the same files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import Mistakes
from headrace.agents.coder.episode import run_episode
from headrace.agents.coder.grading import passed
from headrace.agents.coder.harness import Harness, Limits, TestRun
from headrace.agents.coder.resume import (
    CannotResume,
    RecordedTurn,
    recorded_turns,
    replayed,
    resume_episode,
    score_snapshot,
)
from headrace.agents.coder.tasks import Task
from headrace.agents.coder.trusted_run import run_trusted
from headrace.agents.conversation import Conversation
from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.recorded import start_recorded
from headrace.agents.sandbox.store import Store
from headrace.schemas import events as facts
from tests.agents.coder.noted import Noted, ScriptedModel
from tests.agents.coder.players import play, repair, training_task


class Killed(Exception):
    """The process ends here."""


async def stopped(
    task: Task, turns: list[list[int]], folder: Path, *, after: int, before_result: bool = False
) -> Noted:
    """Run an attempt that dies after some turns, or with the next one sampled; return its log, with snapshots."""
    noted = Noted(task)
    sandbox = await start_recorded(Local(folder, warn=False), noted, task.broken.texts())  # type: ignore[arg-type]
    model = ScriptedModel(turns[: after + before_result])

    async def snapshot_or_die(turn: int) -> None:
        await sandbox.snapshot()
        if turn == after and not before_result:
            raise Killed

    if before_result:
        write, tool = noted.tool, after

        def dies(name: str, arguments: dict[str, Any], *, thinking_tokens: int | None = None) -> Any:
            if len(noted.of(facts.ModelCalled)) > tool:
                raise Killed
            return write(name, arguments, thinking_tokens=thinking_tokens)

        noted.tool = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await run_episode(Conversation(model, noted), task, noted, sandbox, after_turn=snapshot_or_die)  # type: ignore[arg-type]
    await sandbox.stop()
    noted.__dict__.pop("tool", None)
    return noted


@pytest.mark.parametrize("after", [1, 3, 5, 7])
@pytest.mark.parametrize("before_result", [False, True])
async def test_an_attempt_continues_from_its_last_turn(tmp_path: Path, after: int, before_result: bool) -> None:
    task = training_task(3, 2)
    _, end, turns = play(task)
    noted = await stopped(task, turns, tmp_path, after=after, before_result=before_result)
    recorded = recorded_turns(noted.facts)
    assert all(turn.snapshot for turn in recorded[:after])
    assert len(recorded) == after + before_result
    model = ScriptedModel(turns[len(recorded) :])
    provider = Local(tmp_path, warn=False)
    done = await resume_episode(
        Conversation(model, noted),  # type: ignore[arg-type]
        task,
        noted,  # type: ignore[arg-type]
        provider,
        recorded,
    )
    assert (done.status, done.outcome, done.answer) == (end.status, end.outcome, end.answer)
    assert model.turns == []
    trajectory, reward = noted.assembled()
    assert trajectory.defects == []
    assert trajectory.sampled_tokens == sum(map(len, turns))
    assert reward.total == 1.0


@pytest.mark.parametrize("damage", ["removed", "damaged", "of another turn"])
async def test_an_attempt_continues_without_its_snapshot_and_no_other_changes_its_verdict(
    tmp_path: Path, damage: str
) -> None:
    task = training_task(3, 2)
    _, end, turns = play(task)
    noted = await stopped(task, turns, tmp_path, after=len(turns) - 1)
    recorded = recorded_turns(noted.facts)
    snapshot, first = recorded[-1].snapshot, recorded[0].snapshot
    assert snapshot is not None
    assert first is not None
    assert snapshot.id != first.id
    if damage == "of another turn":
        recorded[-1] = replace(recorded[-1], snapshot=first)
    elif damage == "removed":
        Store(tmp_path).remove_unreferenced({first.id})
    else:
        (tmp_path / "snapshots" / f"{snapshot.id}.json").write_bytes(b"")
    conversation = Conversation(ScriptedModel(turns[len(recorded) :]), noted)  # type: ignore[arg-type]
    done = await resume_episode(conversation, task, noted, Local(tmp_path, warn=False), recorded)  # type: ignore[arg-type]
    assert (done.status, done.outcome, done.answer) == (end.status, end.outcome, end.answer)
    assert done.outcome == 1.0


async def test_a_restored_environment_is_scored_by_a_verifier(tmp_path: Path) -> None:
    task = training_task(4, 1)
    provider = Local(tmp_path, warn=False)
    sandbox = await provider.start(task.broken.texts())
    broken = await sandbox.snapshot()
    path = task.paths[task.targets[0]]
    await sandbox.write(path, task.reference.text(path))
    repaired = await sandbox.snapshot()
    await sandbox.stop()
    provider.store.close()
    again = Local(tmp_path, warn=False)
    assert await score_snapshot(again, task, broken) == 0.0
    assert await score_snapshot(again, task, repaired) == 1.0


def test_the_harness_is_a_function_of_the_recorded_turns() -> None:
    for number in range(20):
        task = training_task(number)
        lengths: list[int] = []

        def note(before: Harness, _: list[int], lengths: list[int] = lengths) -> None:
            lengths.append(before.context_tokens)

        harness, _, turns = play(task, mistakes=Mistakes(), seed=number, each=note)
        assert played(task, turns) == lengths
        assert harness.turns == len(turns)


def played(task: Task, turns: list[list[int]]) -> list[int]:
    """Replay all but the last turn, step by step; return the length of the context before each turn."""
    harness, recorded, lengths = Harness(task), [], []
    for turn in turns[:-1]:
        lengths.append(replayed(task, recorded).context_tokens)
        before, failed = harness.context_tokens, None
        step = harness.act(turn)
        if isinstance(step, TestRun):
            outputs = run_trusted(harness.repository, step.calls, step.inputs)
            failed = tuple(set(task.specifications) - passed(outputs, task.expected(step.inputs)))
            harness.tested(outputs)
        recorded.append(RecordedTurn(tuple(turn), before, True, failed))
    return [*lengths, replayed(task, recorded).context_tokens]


def test_turns_of_another_task_or_other_limits_are_refused() -> None:
    task = training_task(5, 1)
    turn = RecordedTurn(tuple(words.encode("read constants.txt <end>")), 99, True)
    with pytest.raises(CannotResume, match="changed"):
        replayed(task, [turn])
    tests = RecordedTurn(tuple(words.encode("run_tests <end>")), len(play_start(task)), True)
    with pytest.raises(CannotResume, match="not recorded"):
        replayed(task, [tests], Limits())
    submit = RecordedTurn(tuple(words.encode("submit <end>")), len(play_start(task)), True, ())
    with pytest.raises(CannotResume, match="had ended"):
        replayed(task, [submit])


def play_start(task: Task) -> tuple[int, ...]:
    """Return the first context."""
    return Harness(task).observe()


async def test_an_incomplete_turn_in_the_middle_is_refused(tmp_path: Path) -> None:
    task = training_task(5, 1)
    turns = [RecordedTurn(tuple(words.encode(repair(task, task.targets[0]))), len(play_start(task)))] * 2
    with pytest.raises(CannotResume, match="before the last"):
        await resume_episode(None, task, None, Local(tmp_path, warn=False), turns)  # type: ignore[arg-type]


def test_a_call_without_tokens_cannot_be_resumed() -> None:
    with pytest.raises(CannotResume, match="tokens of call 0"):
        recorded_turns([facts.ModelCalled(model="policy", messages=[{"role": "assistant", "content": "x"}])])
