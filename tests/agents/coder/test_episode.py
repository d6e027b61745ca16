"""A live attempt records every call, summary and verdict; the streams make one trajectory of the chain and score it."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import Mistakes
from headrace.agents.coder.episode import run_episode
from headrace.agents.coder.harness import Done, Limits
from headrace.agents.coder.tasks import Task
from headrace.agents.conversation import Conversation
from headrace.agents.sandbox.local import Local
from headrace.schemas import events as facts
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from tests.agents.coder.noted import Noted, ScriptedModel
from tests.agents.coder.players import FLAWLESS, play, repair, training_task


async def attempt(
    task: Task, turns: list[list[int]], folder: Path, limits: Limits | None = None
) -> tuple[Noted, ScriptedModel, Done]:
    noted, model = Noted(task), ScriptedModel(turns)
    sandbox = await Local(folder, warn=False).start(task.broken.texts())
    try:
        done = await run_episode(Conversation(model, noted), task, noted, sandbox, limits=limits)  # type: ignore[arg-type]
    finally:
        await sandbox.stop()
    return noted, model, done


async def scored(
    task: Task, mistakes: Mistakes, folder: Path, seed: int = 0
) -> tuple[list[list[int]], Trajectory, Reward]:
    _, _, turns = play(task, mistakes=mistakes, seed=seed)
    noted, _, _ = await attempt(task, turns, folder)
    return turns, *noted.assembled()


async def test_a_flawless_attempt_earns_the_maximum_and_has_no_defect(tmp_path: Path) -> None:
    for number in range(3):
        _, trajectory, reward = await scored(training_task(number, number + 1), FLAWLESS, tmp_path)
        assert trajectory.defects == []
        assert reward.spec == "coder@1"
        assert reward.total == pytest.approx(reward.maximum)


async def test_every_token_of_the_chain_is_trained_with_the_one_reward_and_the_request_is_masked(
    tmp_path: Path,
) -> None:
    task = training_task(1, 4)
    turns, trajectory, reward = await scored(task, replace(FLAWLESS, no_todo=1.0), tmp_path)
    summaries = sum(turn.summarized for turn in trajectory.turns)
    assert summaries >= 2
    assert len(trajectory.segments) == 1 + summaries
    sampled: list[int] = []
    for segment in trajectory.segments:
        for token, mask in zip(segment.token_ids, segment.loss_mask, strict=True):
            if mask:
                sampled.append(token)
            if token == words.TOKEN_IDS[words.SUMMARIZE]:
                assert mask == 0
    assert sampled == [token for turn in turns for token in turn]
    assert reward.components["summaries"].value == summaries
    assert reward.components["summary_tokens"].value > summaries


async def test_attempts_with_mistakes_are_scored_too_and_lose_no_sampled_token(tmp_path: Path) -> None:
    for number in range(4):
        turns, trajectory, reward = await scored(training_task(number), Mistakes(), tmp_path, seed=number)
        assert trajectory.defects == []
        assert reward.total is not None
        assert sum(sum(segment.loss_mask) for segment in trajectory.segments) == sum(map(len, turns))


async def test_summaries_are_events_with_their_place_in_the_chain(tmp_path: Path) -> None:
    task = training_task(2, 4)
    _, _, turns = play(task)
    noted, model, _ = await attempt(task, turns, tmp_path)
    summaries = noted.of(facts.ContextSummarized)
    assert [each.chain_index for each in summaries] == list(range(1, len(summaries) + 1))
    assert all(each.tokens_after < each.tokens_before and each.summary_tokens for each in summaries)
    after = [context for context in model.contexts if words.TOKEN_IDS[words.STATE] in context]
    assert after
    assert all(words.decode(context).startswith(f"<task> {' '.join(task.prompt)} <summary>") for context in after)


async def test_the_sandbox_has_the_edited_files_when_tests_run(tmp_path: Path) -> None:
    task = training_task(3, 1)
    turns = [
        words.encode(line)
        for line in ("run_tests <end>", repair(task, task.targets[0]), "run_tests <end>", "submit <end>")
    ]
    noted, _, done = await attempt(task, turns, tmp_path)
    before, after, verdict = (each.result for each in noted.of(facts.ToolReturned) if "passed" in each.result)
    assert task.targets[0] in before["failed"]
    assert after["failed"] == verdict["failed"] == []
    assert done.outcome == 1.0
    [end] = noted.of(facts.TrajectoryEnded)
    assert (end.status, end.outcome) == (facts.EndStatus.COMPLETED, 1.0)


async def test_an_attempt_without_a_verdict_has_the_outcome_zero(tmp_path: Path) -> None:
    task = training_task(4, 1)
    noted, _, done = await attempt(task, [words.encode("read constants.txt <end>")] * 20, tmp_path, Limits(summaries=0))
    assert done.status is facts.EndStatus.BUDGET_EXHAUSTED
    trajectory, reward = noted.assembled()
    assert (trajectory.outcome, reward.total) == (0.0, 0.0)
