"""A resources server with NeMo Gym's interface, through a whole gateway with vLLM's templates and tool parser."""

import asyncio
import json
from pathlib import Path

import pytest

from headrace.agents.environments.nemo_gym import NemoGymConfig, nemo_gym_environment
from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, run_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.schemas.events import ToolCalled, ToolReturned
from tests.agents.environments.gym_server import gym_server, row
from tests.agents.environments.played import Logged, playing
from tests.conftest import Engine

pytestmark = pytest.mark.vllm


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


async def test_rows_become_groups_with_the_verifiers_rewards(environment_render: Engine, tmp_path: Path) -> None:
    plans = (
        (call("get_weather", city="Oslo"), "It is cold."),
        ("It is cold, I guess.",),
        (call("verify", reward="1"), "It is cold, and I am right."),
        (call("get_weather", town="Oslo"), "I do not know."),
    )
    async with (
        gym_server() as server,
        playing(tmp_path / "gateway", environment_render, plans) as (engine, gateway),
        gateway_sessions(gateway.url) as sessions,
        nemo_gym_environment(NemoGymConfig(server.url, [row()], "weather")) as environment,
    ):
        rollouts = RolloutsConfig(group_size=4, concurrency=2)
        tally = await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
    log = Logged(tmp_path / "gateway")
    log.assert_exact(engine)
    log.assert_groups([4], lambda ended: ended.answer["rewards"]["nemo_gym"][0])
    assert sorted(tally.outcomes) == [0.0, 0.0, 0.0, 1.0]
    assert len(server.verified) == 4  # the policy's own call of it is none
    assert sorted(cities for cities in server.asked.values()) == [[], [], [], ["Oslo"]]
    measured = [each.answer["metrics"] for each in log.ended.values()]
    assert sum(each["tool_errors"] for each in measured) == 2
    assert [each["said_it"] for each in measured].count(1.0) == 3
    tools = [each.fact for each in log.events if isinstance(each.fact, ToolCalled)]
    returned = [each.fact for each in log.events if isinstance(each.fact, ToolReturned)]
    assert sorted(each.tool for each in tools) == ["get_weather", "get_weather", "verify"]
    assert len(returned) == 3
