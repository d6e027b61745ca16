"""A recorded attempt is continued from the middle: what is refused, and a group of continuations on a real Kafka."""

from array import array
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.attempts import Agent, PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.fork import (
    CannotFork,
    ForkPoint,
    RepeatedConversation,
    fork_point,
    forked_task,
    read_events,
)
from headrace.agents.rollouts.journal import LABEL, Place
from headrace.agents.rollouts.sampler import run_fork
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import (
    EndStatus,
    ModelCalled,
    Purpose,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode
from tests.agents.rollouts.toy import TURNS, ToyTask, ToyTasks, episode, toy_engine

PLACE = Place("sampler", 1_000_017, 0, 3, 1)
TASK = ToyTasks().training(PLACE.number, PLACE.level)


def started(**fields: Any) -> TrajectoryStarted:
    task = {"answer": 4, LABEL: PLACE.label}
    given: dict[str, Any] = {
        "task_id": TASK.task_id,
        "agent": "toy",
        "harness_version": "toy-1",
        "group_id": "g",
        "task": task,
    }
    return TrajectoryStarted(**(given | fields))


def call(number: int, **fields: Any) -> ModelCalled:
    given: dict[str, Any] = {"model": "policy", "context_ids": array("i", [number]), "sampled_ids": array("i", [7, 2])}
    return ModelCalled(**(given | fields))


def attempt(
    *middle: Record, start: TrajectoryStarted | None = None, end: TrajectoryEnded | None = None
) -> dict[int, Record]:
    events = [start or started(), *middle, end or TrajectoryEnded(status=EndStatus.COMPLETED)]
    return dict(enumerate(events))


def three_turns() -> list[Record]:
    return [
        each
        for turn in range(3)
        for each in (
            call(turn),
            ToolCalled(call_id=f"c{turn}", tool="look", arguments={}),
            ToolReturned(call_id=f"c{turn}", tool="look", status=ToolStatus.OK, result=turn),
        )
    ]


def test_a_point_has_the_events_up_to_the_next_call() -> None:
    events = attempt(*three_turns())
    for turn in (1, 2):
        point = fork_point("t", events, turn)
        assert len(point.calls) == turn
        assert list(point.events) == [events[number] for number in range(1 + 3 * turn)]
    assert not point.ends_for_continuations


@pytest.mark.parametrize(
    ("events", "turn", "why"),
    [
        ({}, 1, "no events of trajectory t"),
        (attempt(*three_turns()), 3, "choose a turn from 1 to 2"),
        (attempt(*three_turns()), 0, "choose a turn from 1 to 2"),
        (attempt(call(0)), 1, "ended with its first one"),
        ({number: each for number, each in attempt(*three_turns()).items() if number}, 1, "the start"),
        ({number: each for number, each in attempt(*three_turns()).items() if number != 2}, 1, "missing before"),
        (attempt(call(0, sampled_ids=None), call(1)), 1, "tokens of call 1"),
        (attempt(call(0), SubagentStarted(name="n", sub_trajectory_id="u"), call(1)), 1, "sub-agents"),
        (attempt(*three_turns(), start=started(purpose=Purpose.EVALUATE)), 1, "evaluation"),
    ],
)  # fmt: skip
def test_what_cannot_be_continued_is_refused_with_the_reason(events: dict[int, Record], turn: int, why: str) -> None:
    with pytest.raises(CannotFork, match=why):
        fork_point("t", events, turn)


def test_events_that_are_missing_later_do_not_matter() -> None:
    events = attempt(*three_turns())
    assert fork_point("t", {number: each for number, each in events.items() if number != 8}, 1).turn == 1


def test_an_attempt_that_did_not_end_is_continued_after_its_last_call() -> None:
    events = attempt(*three_turns())
    del events[len(events) - 1]
    assert len(fork_point("t", events, 3).events) == len(events)


def test_a_parent_that_ended_to_be_continued_is_named_with_its_group() -> None:
    end = TrajectoryEnded(status=EndStatus.COMPLETED, continuations=8)
    point = fork_point("t", attempt(*three_turns(), end=end), 3)
    assert point.start("g-fork", 8)["fork_group_id"] == "g"
    assert fork_point("t", attempt(*three_turns()), 2).start("g-fork", 8)["fork_group_id"] is None


def test_continuations_have_the_parents_terms_and_no_place_of_a_sampler() -> None:
    point = fork_point("t", attempt(*three_turns(), start=started(consent=False, tenant="acme")), 2)
    start = point.start("g-fork", 8)
    assert (start["consent"], start["tenant"]) == (False, "acme")
    assert (start["parent_trajectory_id"], start["fork_turn"]) == ("t", 2)
    assert (start["group_id"], start["group_size"]) == ("g-fork", 8)
    assert start["task"] == {"answer": 4}


def test_the_task_is_that_of_the_same_number() -> None:
    point = fork_point("t", attempt(*three_turns()), 1)
    assert forked_task(ToyTasks(), point) == TASK
    with pytest.raises(CannotFork, match="is now toy-1000017-middle"):
        forked_task(ToyTasks(), replace(point, started=started(task_id="toy-1000017-older")))
    with pytest.raises(CannotFork, match="only attempts that a sampler made"):
        forked_task(ToyTasks(), replace(point, started=started(task={})))


async def fork(
    conversation: Conversation, task: ToyTask, trajectory: Trajectory, temperature: float, point: ForkPoint
) -> None:
    await episode(RepeatedConversation(conversation, point), task, trajectory, temperature)


async def logged(kafka: str) -> dict[str, list[Record]]:
    """Return the events of each trajectory, in order."""
    found: dict[str, list[Record]] = defaultdict(list)
    async for record in read_to_end(kafka, EVENTS):
        envelope, event = decode(record.headers, record.value)
        found[envelope.subject or ""].append(event)
    return found


@pytest.mark.kafka
async def test_a_recorded_attempt_becomes_a_group_of_continuations(kafka: str) -> None:
    run = "forks"
    agent = Agent("toy", "toy-1", episode, fork=fork)
    async with toy_engine(0.0) as (engine, url):
        config = RolloutConfig(kafka, url, run)
        start = {"group_id": "g", "group_size": 2, "task": {LABEL: PLACE.label}}
        async with PolicyAttempts(agent, kafka, url, run=run, concurrency=4) as attempts:
            parent = await attempts.prepare(TASK, temperature=1.0, start=start)
            await parent.run()
        events = await read_events(kafka, parent.trajectory_id)
        before = engine.answers
        async with PolicyAttempts(agent, kafka, url, run=run, concurrency=4) as attempts:
            group = await run_fork(config, ToyTasks(), attempts, fork_point(parent.trajectory_id, events, 2), count=5)
        assert engine.answers - before == 5 * (TURNS - 2)
    assert len(set(group.trajectory_ids)) == 5
    found = await logged(kafka)
    calls = [event for event in found[parent.trajectory_id] if isinstance(event, ModelCalled)]
    shared = [*(calls[0].context_ids or []), *(calls[0].sampled_ids or []), *(calls[1].context_ids or [])]
    shared += [*(calls[1].sampled_ids or []), 1]
    for name in group.trajectory_ids:
        begun, *rest = found[name]
        assert isinstance(begun, TrajectoryStarted)
        assert (begun.parent_trajectory_id, begun.fork_turn) == (parent.trajectory_id, 2)
        assert (begun.group_id, begun.group_size, begun.task_id) == (group.group_id, 5, TASK.task_id)
        [sampled] = [event for event in rest if isinstance(event, ModelCalled)]
        assert sampled.prefix_length == 0
        assert list(sampled.context_ids or []) == shared
        assert sum(isinstance(event, ToolReturned) for event in rest) == TURNS
        assert isinstance(rest[-1], TrajectoryEnded)


@pytest.mark.kafka
async def test_an_agent_that_cannot_or_has_changed_is_named(kafka: str) -> None:
    point = fork_point("t", attempt(*three_turns()), 1)
    config = RolloutConfig(kafka, "http://127.0.0.1:1", "forks")
    for agent, why in (
        (Agent("toy", "toy-1", episode), "cannot be continued"),
        (Agent("toy", "toy-2", episode, fork=fork), "toy-2"),
    ):
        async with PolicyAttempts(agent, kafka, config.vllm_url, run="forks", concurrency=1) as attempts:
            with pytest.raises(CannotFork, match=why):
                await run_fork(config, ToyTasks(), attempts, point, count=2)
