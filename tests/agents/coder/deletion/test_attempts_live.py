"""Attempts at a deletion task through a whole gateway with vLLM's templates and tool parser: what a trainer gets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.coder.deletion.environment import DeletionConfig, deletion_environment
from headrace.agents.coder.deletion.harness import HARNESS_VERSION
from headrace.agents.coder.deletion.installation import Installation
from headrace.agents.coder.deletion.tasks import DeletionTask
from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, run_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.schemas.events import ToolCalled
from tests.agents.coder.deletion.conftest import MODULE
from tests.agents.coder.deletion.test_environment import deleted
from tests.agents.environments.conftest import environment_render as environment_render
from tests.agents.environments.played import Logged, playing
from tests.conftest import Engine

pytestmark = pytest.mark.vllm


def call(tool: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


async def test_a_group_of_attempts_becomes_a_training_group_with_exact_tokens(
    environment_render: Engine, tmp_path: Path, task: DeletionTask, installed: Installation
) -> None:
    submit = call("submit", {})
    read = call("read", {"path": f"{MODULE}.py", "start": 1, "lines": 5})
    plans = (
        (read, call(*deleted(installed, task)), submit),
        (submit,),
        (call("grep", {"pattern": "def "}), "I give up.", submit),
        (call("run_tests", {}), submit),
    )
    config = DeletionConfig([task], tmp_path / "sandboxes")
    async with (
        playing(tmp_path / "gateway", environment_render, plans) as (engine, gateway),
        gateway_sessions(gateway.url) as sessions,
        deletion_environment(config) as environment,
    ):
        rollouts = RolloutsConfig(group_size=4, concurrency=2)
        tally = await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
    assert sorted(tally.outcomes) == [0.0, 0.0, 0.0, 1.0]
    log = Logged(tmp_path / "gateway")
    log.assert_exact(engine)
    log.assert_groups([4], lambda ended: ended.answer["rewards"]["deletion"][0])
    assert {each.harness_version for each in log.started.values()} == {HARNESS_VERSION}
    assert {each.task_id for each in log.started.values()} == {task.task_id}
    (group,) = log.groups
    advantages = sorted(each.advantage for each in group.members)
    assert advantages[0] < 0 < advantages[-1]
    tools = {each.fact.tool for each in log.events if isinstance(each.fact, ToolCalled)}
    assert tools == {"edit", "grep", "read", "run_tests", "submit"}
