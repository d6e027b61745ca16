"""An ordinary program's attempts through a live gateway: it sends and receives text, what is recorded is exact."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.policy import PolicyError
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.sampler import run_evaluation
from headrace.agents.search.program_attempts import AGENT, HARNESS_VERSION, program_attempts
from headrace.agents.search.rollouts import SEARCH_TASKS
from headrace.agents.search.tasks import make_task
from headrace.schemas.events import EndStatus, ModelCalled, Purpose, TrajectoryEnded, TrajectoryStarted
from tests.agents.gateway.running import exact_calls, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import answering

NOBODY = "http://127.0.0.1:9"


@pytest.mark.vllm
async def test_attempts_are_trajectories_with_the_programs_answer(tmp_path: Path, vllm: Any) -> None:
    config = RolloutConfig(NOBODY, vllm.url, "program", concurrency=16)
    tasks = [SEARCH_TASKS.held_out(number) for number in range(24)]
    async with running_gateway(tmp_path / "gateway", [vllm.url], run="program") as gateway:
        async with program_attempts(gateway.url, tmp_path / "program.log") as attempts:
            ids = await run_evaluation(config, attempts, tasks, greedy=False, labels={"policy_version": 0})
        assert gateway.sessions == 0
    events = recorded_in(tmp_path / "gateway")
    calls = exact_calls(events)
    assert len(calls) > 24
    assert all(call.fact.logprobs is not None and call.fact.version_spans for call in calls)
    by_trajectory = {name: [each.fact for each in events if each.trajectory_id == name] for name in ids}
    assert len(by_trajectory) == 24
    assert Counter(each.trajectory_id for each in events).keys() == by_trajectory.keys()
    for task, (started, *called, ended) in zip(tasks, by_trajectory.values(), strict=True):
        assert isinstance(started, TrajectoryStarted)
        assert (started.task_id, started.agent, started.harness_version, started.run, started.purpose) == (
            task.task_id, AGENT, HARNESS_VERSION, "program", Purpose.EVALUATE,
        )  # fmt: skip
        assert started.task == {**make_task(task.task_id).facts, "policy_version": 0, "evaluation": "sampled"}
        assert all(isinstance(each, ModelCalled) for each in called)
        assert isinstance(ended, TrajectoryEnded)
        assert set(ended.answer) - {"chunk_ids"} == {"retrieved"}
        assert (ended.status is EndStatus.COMPLETED) == ("chunk_ids" in ended.answer)
    assert any(
        facts[-1].answer["retrieved"] for facts in by_trajectory.values() if isinstance(facts[-1], TrajectoryEnded)
    )


@pytest.mark.parametrize("left", [0, 1])
async def test_a_pruned_context_is_a_segment_of_the_same_trajectory(tmp_path: Path, left: int) -> None:
    task = SEARCH_TASKS.held_out(0)
    query = [task.question[-2]]
    found = [chunk.chunk_id for chunk in task.index.search(query)[:3]]
    texts = [f"search_corpus {query[0]}", f"prune_chunks {' '.join(found[left:])}", f"answer {found[0]}"]
    async with (
        answering(*texts) as engine,
        running_gateway(tmp_path / "gateway", [engine.url]) as gateway,
        program_attempts(gateway.url, tmp_path / "program.log") as attempts,
    ):
        await (await attempts.prepare(task, temperature=1.0, start={})).run()
    events = recorded_in(tmp_path / "gateway")
    calls = exact_calls(events)
    assert len({each.trajectory_id for each in events}) == 1
    assert [call.starts_segment for call in calls] == [True, False, True]
    ended = events[-1].fact
    assert isinstance(ended, TrajectoryEnded)
    assert ended.answer == {"chunk_ids": found[:1], "retrieved": found}


async def test_a_program_without_an_engine_fails_and_its_trajectory_says_so(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path / "gateway", [NOBODY]) as gateway,
        program_attempts(gateway.url, tmp_path / "program.log") as attempts,
    ):
        attempt = await attempts.prepare(SEARCH_TASKS.held_out(0), temperature=1.0, start={})
        with pytest.raises(PolicyError, match=r"the program failed: .*Error"):
            await attempt.run()
    ended = recorded_in(tmp_path / "gateway")[-1].fact
    assert isinstance(ended, TrajectoryEnded)
    assert ended.status is EndStatus.FAILED


async def test_a_program_that_ended_fails_what_it_had_and_what_it_gets(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path / "gateway", [NOBODY]) as gateway,
        program_attempts(gateway.url, tmp_path / "program.log") as attempts,
    ):
        task = SEARCH_TASKS.held_out(0)
        first, second = [await attempts.prepare(task, temperature=1.0, start={}) for _ in range(2)]
        stdin = attempts._program._process.stdin
        assert stdin is not None
        stdin.write(b"no JSON\n")
        for attempt in (first, second):
            with pytest.raises(PolicyError, match=r"openai_program\.py has ended: see .*program\.log"):
                await attempt.run()
    assert "JSONDecodeError" in (tmp_path / "program.log").read_text()
