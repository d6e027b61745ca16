"""Groups, limits and ends of a run, with an environment of the test and a whole gateway."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.environments.environment import (
    Cause,
    EnvironmentTask,
    EnvironmentUnusable,
    Part,
    RolloutResult,
    Seat,
    failed,
)
from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, Tally, run_environment
from headrace.agents.environments.sessions import GatewayFailed, GatewaySessions, gateway_sessions
from headrace.schemas.events import EndStatus, Purpose, TrajectoryEnded, TrajectoryStarted
from tests.agents.gateway.running import RunningGateway, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import answering, until

DOWN = failed(Cause.INFRASTRUCTURE, "SandboxError", "no sandbox")


class Counting:
    """An environment with three tasks whose rewards are 0, 1, 2 …"""

    name = "counting"
    version = "counting-1"

    def __init__(self, result: Callable[[int], RolloutResult] | None = None) -> None:
        self.result = result or (lambda number: RolloutResult(rewards={"count": Part(float(number))}))
        self.tasks = 3
        self.given = 0
        self.attempts = 0
        self.running = 0
        self.most_running = 0
        self.sessions: list[str] = []
        self.released: list[int] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def next_task(self) -> EnvironmentTask | None:
        if self.given == self.tasks:
            return None
        self.given += 1
        return EnvironmentTask(self.given - 1, f"count-{self.given - 1}", {"level": "easy"})

    async def attempt(self, task: EnvironmentTask, seat: Seat) -> RolloutResult:
        number, self.attempts = self.attempts, self.attempts + 1
        self.sessions.append(seat.session)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        await self.may_end.wait()
        self.running -= 1
        return self.result(number)

    async def finished(self, task: EnvironmentTask) -> None:
        assert self.running == 0 or self.may_end.is_set()
        self.released.append(task.number)


@asynccontextmanager
async def at_gateway(folder: Path) -> AsyncIterator[tuple[RunningGateway, GatewaySessions]]:
    async with (
        answering("never asked") as engine,
        running_gateway(folder, [engine.url], run="run") as gateway,
        gateway_sessions(gateway.url) as sessions,
    ):
        yield gateway, sessions


async def ran(folder: Path, environment: Counting, **settings: Any) -> Tally:
    async with at_gateway(folder) as (_, sessions):
        config = RolloutsConfig(**{"group_size": 2, **settings})
        return await run_environment(config, environment, sessions, AlwaysRoom(), stop=asyncio.Event())


def facts_in(folder: Path, kind: type[Any]) -> list[Any]:
    return [each.fact for each in recorded_in(folder) if isinstance(each.fact, kind)]


async def test_each_task_is_a_group_of_sessions(tmp_path: Path) -> None:
    environment = Counting()
    tally = await ran(tmp_path, environment, agent="counter")
    facts = [each.fact for each in recorded_in(tmp_path)]
    started = [each for each in facts if isinstance(each, TrajectoryStarted)]
    ended = [each for each in facts if isinstance(each, TrajectoryEnded)]
    assert (tally.groups, tally.ended, sorted(tally.outcomes)) == (3, {"completed": 6}, [0, 1, 2, 3, 4, 5])
    assert sorted(each.outcome or 0.0 for each in ended) == [0, 1, 2, 3, 4, 5]
    groups = {each.group_id: each.task_id for each in started}
    assert sorted(groups.values()) == ["count-0", "count-1", "count-2"]
    for each in started:
        assert (each.agent, each.harness_version, each.group_size) == ("counter", "counting-1", 2)
        assert (each.task, each.purpose, each.run) == (
            {"environment": "counting", "level": "easy"}, Purpose.TRAIN, "run",
        )  # fmt: skip
    assert sorted(environment.released) == [0, 1, 2]
    assert str(tally) == "3 groups begun; rollouts ended: 6 completed; mean outcome 2.500"


async def test_an_evaluation_has_no_groups(tmp_path: Path) -> None:
    await ran(tmp_path, Counting(), purpose=Purpose.EVALUATE, groups=1)
    started = facts_in(tmp_path, TrajectoryStarted)
    assert [(each.purpose, each.group_id, each.group_size) for each in started] == [(Purpose.EVALUATE, None, None)] * 2


async def test_no_more_rollouts_run_than_may(tmp_path: Path) -> None:
    environment = Counting()
    await ran(tmp_path, environment, group_size=4, concurrency=3)
    assert (environment.attempts, environment.most_running) == (12, 3)


async def test_a_stop_completes_the_groups_in_flight(tmp_path: Path) -> None:
    environment, stop = Counting(), asyncio.Event()
    environment.may_end.clear()
    async with at_gateway(tmp_path) as (_, sessions):
        config = RolloutsConfig(group_size=2, concurrency=2)
        running = asyncio.create_task(run_environment(config, environment, sessions, AlwaysRoom(), stop=stop))
        await until(lambda: environment.running == 2)
        stop.set()
        environment.may_end.set()
        tally = await running
    assert tally.ended == {"completed": 2 * tally.groups}
    assert tally.groups < environment.tasks
    assert {each.status for each in facts_in(tmp_path, TrajectoryEnded)} == {EndStatus.COMPLETED}


async def test_a_cancelled_run_ends_its_sessions_as_aborted(tmp_path: Path) -> None:
    environment = Counting()
    environment.may_end.clear()
    async with at_gateway(tmp_path) as (gateway, sessions):
        config = RolloutsConfig(group_size=3, concurrency=2)
        running = asyncio.create_task(
            run_environment(config, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
        )
        await until(lambda: environment.running == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        assert gateway.sessions == 0
    ended = facts_in(tmp_path, TrajectoryEnded)
    assert [(each.status, each.outcome) for each in ended] == [(EndStatus.ABORTED, None)] * 3


async def test_a_run_ends_after_failures_in_a_row_that_are_not_the_rollouts(tmp_path: Path) -> None:
    tally = Tally()
    async with at_gateway(tmp_path) as (_, sessions):
        config = RolloutsConfig(group_size=1, concurrency=1, max_failures=2)
        with pytest.raises(ExceptionGroup) as raised:
            await run_environment(
                config, Counting(lambda _: DOWN), sessions, AlwaysRoom(), stop=asyncio.Event(), tally=tally
            )
    assert raised.group_contains(
        EnvironmentUnusable, match="2 rollouts in a row failed, the last one with SandboxError"
    )
    assert tally.failures == {"SandboxError": 2}
    assert {each.outcome for each in facts_in(tmp_path, TrajectoryEnded)} == {None}


async def test_failures_of_rollouts_end_no_run(tmp_path: Path) -> None:
    tally = await ran(
        tmp_path,
        Counting(lambda number: failed(Cause.ROLLOUT, "TaskError", "it broke") if number % 2 else DOWN),
        max_failures=2,
        concurrency=1,
        failed_outcome=-1.0,
    )
    assert tally.failures == {"TaskError": 3, "SandboxError": 3}
    assert tally.outcomes == [-1.0] * 3


async def test_a_session_that_the_gateway_ended_is_a_failure(tmp_path: Path) -> None:
    environment = Counting()
    environment.may_end.clear()
    async with at_gateway(tmp_path) as (gateway, sessions):
        config = RolloutsConfig(group_size=1, groups=1)
        running = asyncio.create_task(
            run_environment(config, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
        )
        await until(lambda: environment.running == 1)
        status, _ = await gateway.post(f"/sessions/{environment.sessions[0]}/end", {})
        assert status == 200
        environment.may_end.set()
        tally = await running
    assert tally.failures == {"session_lost": 1}


async def test_a_gateway_that_refuses_is_named(tmp_path: Path) -> None:
    async with at_gateway(tmp_path) as (gateway, sessions):
        with pytest.raises(
            GatewayFailed, match=f"the gateway at {gateway.url} answered 400 to /sessions: .*group_size"
        ):
            await sessions.open({"group_size": 0})


async def test_a_run_says_how_far_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environment = Counting()
    environment.may_end.clear()
    with caplog.at_level(logging.INFO, "headrace.agents.environments.rollouts"):
        async with at_gateway(tmp_path) as (_, sessions):
            config = RolloutsConfig(group_size=1, concurrency=1, report_every_s=0.01)
            running = asyncio.create_task(
                run_environment(config, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
            )
            await until(lambda: "counting: 2 groups begun; rollouts ended: none; mean outcome none" in caplog.messages)
            environment.may_end.set()
            await running


@pytest.mark.parametrize("settings", [{"group_size": 0}, {"concurrency": 0}, {"groups": 0}, {"max_failures": 0}])
def test_a_setting_that_is_too_small_is_named(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is 0: it must be at least 1"):
        RolloutsConfig(**settings)
