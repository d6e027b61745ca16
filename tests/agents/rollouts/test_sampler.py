"""Groups with the real components, and invalid settings."""

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from headrace.agents.rollouts.attempts import PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.rollout_metrics import SamplingReport
from headrace.agents.rollouts.sampler import run_evaluation, run_rollouts
from headrace.agents.rollouts.tasks import SEEDS, TASKS_PER_SEED, training_number
from headrace.agents.search.demonstrations import HELD_OUT_FIRST
from headrace.agents.search.rollouts import AGENT, SEARCH_TASKS, search_agent
from headrace.agents.search.tasks import Task, make_task
from headrace.schemas.events import (
    ContextPruned,
    ModelCalled,
    Purpose,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode

NOWHERE = RolloutConfig("127.0.0.1:1", "http://127.0.0.1:1", "run")


def attempts_of(config: RolloutConfig) -> PolicyAttempts[Task]:
    return PolicyAttempts(
        search_agent(), config.bootstrap, config.vllm_url, run=config.run, concurrency=config.concurrency
    )


def test_seeds_never_share_a_task_and_leave_the_demonstrations_alone() -> None:
    numbers = [training_number(seed, n) for seed in (0, 1, SEEDS - 1) for n in (0, 1, TASKS_PER_SEED - 1)]
    assert len(set(numbers)) == len(numbers)
    assert all(TASKS_PER_SEED <= number < HELD_OUT_FIRST for number in numbers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 998}, "seed"),
        ({"max_groups": 0}, "max_groups"),
        ({"share": 0.0}, "share"),
        ({"concurrency": 0}, "concur"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(NOWHERE, **settings)


async def facts_of(bootstrap: str, run: str) -> dict[str, list[Record]]:
    """Return the events of ``run`` by trajectory, in order."""
    facts: dict[str, list[Record]] = {}
    async for record in read_to_end(bootstrap, EVENTS):
        envelope, payload = decode(record.headers, record.value)
        facts.setdefault(envelope.subject, []).append(payload)
    return {key: events for key, events in facts.items() if getattr(events[0], "run", None) == run}


def assert_whole(events: list[Record]) -> None:
    """Check that the trajectory has a start, a return for every tool call, and an end."""
    started, ended = events[0], events[-1]
    assert isinstance(started, TrajectoryStarted)
    assert isinstance(ended, TrajectoryEnded)
    assert started.agent == AGENT
    task = make_task(started.task_id)
    assert started.task["targets"] == list(task.targets)
    assert started.task["answer_chunks"] == list(task.answer_chunks)
    kinds = Counter(type(event) for event in events)
    assert kinds[ToolCalled] == kinds[ToolReturned]
    assert kinds[ModelCalled] == kinds[ToolCalled] + (ended.answer is not None)
    for event, following in itertools.pairwise(events):
        if isinstance(event, ContextPruned) and isinstance(following, ModelCalled):
            assert following.prefix_length == 0
    for event in events:
        if isinstance(event, ModelCalled):
            assert event.sampled_ids
            assert event.logprobs is not None


@pytest.mark.kafka
@pytest.mark.vllm
async def test_rollouts_are_complete_groups_within_the_limit_and_can_be_stopped(kafka: str, vllm: Any) -> None:
    stop = asyncio.Event()
    config = RolloutConfig(kafka, vllm.url, "rollouts", seed=5, max_groups=3, concurrency=16)

    async def rolled_out() -> SamplingReport:
        async with attempts_of(config) as attempts:
            return await run_rollouts(config, SEARCH_TASKS, attempts, stop=stop)

    rollouts = asyncio.create_task(rolled_out())
    # Nothing is trained here, so three groups fill the room for good.
    for _ in range(240):
        await asyncio.sleep(0.5)
        if sum(isinstance(e[-1], TrajectoryEnded) for e in (await facts_of(kafka, "rollouts")).values()) == 24:
            break
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(rollouts), 2)
    assert not rollouts.done()
    stop.set()
    assert (await asyncio.wait_for(rollouts, 60)).groups == 3
    facts = await facts_of(kafka, "rollouts")
    assert len(facts) == 24
    for events in facts.values():
        assert_whole(events)
    starts = [events[0] for events in facts.values()]
    groups = Counter((start.group_id, start.task_id) for start in starts if isinstance(start, TrajectoryStarted))
    assert sorted(groups.values()) == [8, 8, 8]


@pytest.mark.kafka
@pytest.mark.vllm
async def test_an_evaluation_is_labelled_and_greedy_ones_repeat(kafka: str, vllm: Any) -> None:
    config = RolloutConfig(kafka, vllm.url, "evaluation", concurrency=8)
    tasks = [SEARCH_TASKS.held_out(number) for number in range(6)]
    async with attempts_of(config) as attempts:
        first = await run_evaluation(config, attempts, tasks, greedy=True, labels={"phase": "before"})
        again = await run_evaluation(config, attempts, tasks, greedy=True)
        sampled = await run_evaluation(config, attempts, tasks, greedy=False)
    facts = await facts_of(kafka, "evaluation")
    assert set(facts) == {*first, *again, *sampled}
    for trajectory_id, name in [*((key, "greedy") for key in first + again), *((key, "sampled") for key in sampled)]:
        assert_whole(facts[trajectory_id])
        start = facts[trajectory_id][0]
        assert isinstance(start, TrajectoryStarted)
        assert start.purpose is Purpose.EVALUATE
        assert start.group_id is None
        assert (start.task["evaluation"], start.task["split"]) == (name, "heldout")
    for one, other in zip(first, again, strict=True):
        ends = [facts[key][-1] for key in (one, other)]
        assert all(isinstance(end, TrajectoryEnded) for end in ends)
        assert ends[0].model_dump()["answer"] == ends[1].model_dump()["answer"]
