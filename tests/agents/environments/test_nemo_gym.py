"""NeMo Gym's interface: rows, parameters, and whose failure an error is."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.environments.environment import Cause, EnvironmentUnusable, Part, RolloutResult, Seat
from headrace.agents.environments.nemo_gym import NemoGymConfig, nemo_gym_environment, parameters_of, read_rows
from headrace.agents.environments.sessions import gateway_sessions
from headrace.schemas.events import EndStatus
from tests.agents.environments.gym_server import GymServer, gym_server, row
from tests.agents.gateway.running import running_gateway
from tests.agents.gateway.scripted_engine import Reply, answering


async def played(folder: Path, server: GymServer, reply: str | Reply = "It is cold.") -> RolloutResult:
    """One rollout's result; the policy calls no tool."""
    async with (
        answering(reply) as engine,
        running_gateway(folder, [engine.url]) as gateway,
        gateway_sessions(gateway.url) as sessions,
        nemo_gym_environment(NemoGymConfig(server.url, [row()], "weather")) as environment,
    ):
        session, task = await sessions.open({}), await environment.next_task()
        assert task is not None
        assert await environment.next_task() is None
        return await environment.attempt(task, Seat(session.session, session.base_url, "policy", {}))


async def test_the_verifier_sees_the_row_and_the_whole_response(tmp_path: Path) -> None:
    async with gym_server() as server:
        result = await played(tmp_path, server)
        (verified,) = server.verified
    assert (result.status, result.rewards) == (EndStatus.COMPLETED, {"nemo_gym": Part(0.0)})
    assert result.metrics == {"turns": 1, "tool_calls": 0, "tool_errors": 0, "said_it": 1.0}
    assert {name: verified[name] for name in row()} == row()
    assert verified["response"]["object"] == "response"
    assert verified["response"]["output"][-1]["content"][0]["text"] == "It is cold."


async def test_an_answer_that_was_cut_off_is_verified(tmp_path: Path) -> None:
    async with gym_server() as server:
        result = await played(tmp_path, server, Reply("It is cold", finish_reason="length"))
    assert (result.status, result.stop) == (EndStatus.BUDGET_EXHAUSTED, "max_output_tokens")
    assert result.metrics["said_it"] == 1.0


async def test_a_verifier_that_breaks_is_a_failure_that_the_policy_can_bring_about(tmp_path: Path) -> None:
    async with gym_server() as server:
        server.broken_verifier = True
        failure = (await played(tmp_path, server)).failure
    assert failure is not None
    assert (failure.label, failure.cause) == ("environment_failed", Cause.ROLLOUT)
    assert "/verify answered 500" in failure.message


async def test_tools_behind_mcp_are_refused_with_the_command_that_has_them(tmp_path: Path) -> None:
    async with gym_server() as server:
        server.seeded = {"mcp": {"url_path": "/mcp", "headers": {}}}
        failure = (await played(tmp_path, server)).failure
    assert failure is not None
    assert failure.cause is Cause.INFRASTRUCTURE
    assert "headrace environment verifiers nemo-gym" in failure.message


async def test_a_server_that_is_away_is_no_failure_of_the_policy(tmp_path: Path) -> None:
    server = GymServer()
    server.url = "http://127.0.0.1:9"
    failure = (await played(tmp_path, server)).failure
    assert failure is not None
    assert (failure.label, failure.cause) == ("environment_away", Cause.INFRASTRUCTURE)


def test_calls_have_the_rows_parameters_without_its_sampling_and_strictness() -> None:
    asked: dict[str, Any] = row()
    params = parameters_of(asked | {"responses_create_params": asked["responses_create_params"] | {"metadata": None}})
    assert set(params) == {"input", "tools"}
    assert params["tools"][0]["strict"] is False
    assert asked["responses_create_params"]["tools"][0]["strict"] is True


def test_rows_are_read_by_line(tmp_path: Path) -> None:
    file = tmp_path / "weather.jsonl"
    file.write_text(f"{json.dumps(row())}\n\n{json.dumps(row('And in Bergen?'))}\n")
    assert read_rows(file) == [row(), row("And in Bergen?")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ":1 is no JSON"),
        (f"{json.dumps(row())}\n[]", ":2 has no responses_create_params"),
        ('{"responses_create_params": {"input": 3}}', ":1 has no responses_create_params with an input"),
        ("\n", "has no rows"),
    ],
)
def test_a_file_that_has_no_tasks_says_where(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "weather.jsonl"
    file.write_text(text)
    with pytest.raises(EnvironmentUnusable, match=said):
        read_rows(file)
