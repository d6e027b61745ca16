"""OpenEnv's protocol against a server of the test: what the policy sees, and what becomes of errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from headrace.agents.environments import openenv
from headrace.agents.environments.environment import Cause, EnvironmentUnusable, Part, RolloutResult, Seat
from headrace.agents.environments.openenv import NoAction, OpenEnvConfig, action_of, openenv_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.schemas.events import EndStatus
from tests.agents.gateway.running import running_gateway
from tests.agents.gateway.scripted_engine import Fault, Reply, ScriptedEngine, answering, until
from tests.local_server import serving

NUMBER = {"title": "GuessAction", "properties": {"guess": {"type": "integer"}}, "required": ["guess"]}
TEXT = {"title": "EchoAction", "properties": {"message": {"type": "string"}}, "required": ["message"]}
TWO = {"title": "MoveAction", "properties": {"x": {}, "y": {}}, "required": ["x", "y"]}


class GuessServer:
    """Guess a number: the seed."""

    def __init__(self) -> None:
        self.url = ""
        self.schema: dict[str, Any] = NUMBER
        self.rooms = 8
        self.open = 0
        self.refused = 0
        self.breaks = False
        self.hangs = False

    async def answer_schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": self.schema, "observation": {}, "state": {}})

    async def play(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open >= self.rooms:
            self.refused += 1
            await socket.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            return socket
        self.open += 1
        target = 0
        try:
            async for message in socket:
                said = json.loads(message.data)
                if said["type"] == "reset":
                    target = said["data"]["seed"]
                    if target < 0:
                        await socket.send_json({"type": "error", "data": {"message": "no", "code": "EXECUTION_ERROR"}})
                        continue
                    await self._observe(socket, "guess", None, False)
                elif self.hangs:
                    await asyncio.Event().wait()
                elif self.breaks:
                    return socket
                elif not isinstance(guess := said["data"].get("guess"), int):
                    data = {"message": "guess must be a number", "code": "VALIDATION_ERROR"}
                    await socket.send_json({"type": "error", "data": data})
                else:
                    hint = "found" if guess == target else "higher" if guess < target else "lower"
                    await self._observe(socket, hint, 1.0 if guess == target else -0.125, guess == target)
        finally:
            self.open -= 1
        return socket

    async def _observe(self, socket: web.WebSocketResponse, hint: str, reward: float | None, done: bool) -> None:
        data = {"observation": {"hint": hint}, "reward": reward, "done": done}
        await socket.send_json({"type": "observation", "data": data})


@asynccontextmanager
async def guess_server() -> AsyncIterator[GuessServer]:
    server, app = GuessServer(), web.Application()
    app.router.add_get("/schema", server.answer_schema)
    app.router.add_get("/ws", server.play)
    async with serving(app, handler_cancellation=True, shutdown_timeout=0.1) as server.url:
        yield server


async def played(
    folder: Path, server: GuessServer, *replies: str | Reply, reset: dict[str, Any] | None = None, **settings: Any
) -> tuple[RolloutResult, ScriptedEngine]:
    """One rollout's result, with the engine that answered."""
    async with (
        answering(*replies) as engine,
        running_gateway(folder, [engine.url]) as gateway,
        gateway_sessions(gateway.url) as sessions,
        openenv_environment(OpenEnvConfig(server.url, [reset or {"seed": 4}], **settings)) as environment,
    ):
        session = await sessions.open({})
        task = await environment.next_task()
        assert task is not None
        assert await environment.next_task() is None
        return await environment.attempt(task, Seat(session.session, session.base_url, "policy", {})), engine


async def test_the_reward_is_the_sum_of_the_steps_rewards(tmp_path: Path) -> None:
    async with guess_server() as server:
        result, engine = await played(tmp_path, server, '{"guess": 2}', '```json\n{"guess": 9}\n```', "4")
    assert (result.status, result.rewards) == (EndStatus.COMPLETED, {"openenv": Part(0.75)})
    assert result.metrics == {"turns": 3, "steps": 3, "invalid_actions": 0}
    shown = max((each["messages"] for each in engine.rendered), key=len)
    assert json.dumps(NUMBER) in shown[0]["content"]
    assert [each["content"] for each in shown[2::2]] == ['{"hint": "higher"}', '{"hint": "lower"}']


async def test_what_is_no_action_is_told_to_the_policy_and_counted(tmp_path: Path) -> None:
    async with guess_server() as server:
        result, engine = await played(tmp_path, server, "I say four", '{"guess": "four"}', "4")
    assert result.rewards == {"openenv": Part(1.0)}
    assert result.metrics == {"turns": 3, "steps": 1, "invalid_actions": 2}
    shown = max((each["messages"] for each in engine.rendered), key=len)
    assert [each["content"] for each in shown[2::2]] == [
        '{"error": "that is no JSON"}', '{"error": "guess must be a number"}',
    ]  # fmt: skip


async def test_turns_are_limited_and_what_was_reached_counts(tmp_path: Path) -> None:
    async with guess_server() as server:
        result, _ = await played(tmp_path, server, "1", "2", "3", max_turns=2)
    assert (result.status, result.stop, result.rewards) == (
        EndStatus.TURNS_EXHAUSTED, "max_turns", {"openenv": Part(-0.25)},
    )  # fmt: skip


async def test_a_server_without_room_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "CAPACITY_S", 0.01)
    async with guess_server() as server:
        server.rooms = 0
        running = asyncio.create_task(played(tmp_path, server, "4"))
        await until(lambda: server.refused > 0)
        server.rooms = 1
        result, _ = await running
    assert result.status is EndStatus.COMPLETED


@pytest.mark.parametrize(
    ("changes", "reset", "label", "cause"),
    [
        ({"breaks": True}, {"seed": 4}, "environment_failed", Cause.ROLLOUT),
        ({"hangs": True}, {"seed": 4}, "step_timeout", Cause.ROLLOUT),
        ({}, {"seed": -1}, "environment_failed", Cause.INFRASTRUCTURE),
    ],
)
async def test_whose_failure_it_is(
    changes: dict[str, bool],
    reset: dict[str, Any],
    label: str,
    cause: Cause,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guess_server() as server:
        for name, value in changes.items():
            setattr(server, name, value)
        if "hangs" in changes:
            monkeypatch.setattr(openenv, "STEP_S", 1.0)
        result, _ = await played(tmp_path, server, "4", reset=reset)
    assert result.failure is not None
    assert (result.status, result.failure.label, result.failure.cause) == (EndStatus.FAILED, label, cause)


async def test_a_context_that_is_full_ends_the_rollout_with_what_was_reached(tmp_path: Path) -> None:
    class Small(ScriptedEngine):
        def reply_to(self, body: dict[str, Any]) -> Reply:
            return Reply("1") if len(self.requests) == 1 else Reply(fault=Fault.REFUSED)

    async with (
        guess_server() as server,
        Small() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        gateway_sessions(gateway.url) as sessions,
        openenv_environment(OpenEnvConfig(server.url, [{"seed": 4}])) as environment,
    ):
        session, task = await sessions.open({}), await environment.next_task()
        assert task is not None
        result = await environment.attempt(task, Seat(session.session, session.base_url, "policy", {}))
    assert (result.status, result.stop, result.rewards) == (
        EndStatus.BUDGET_EXHAUSTED, "context_exhausted", {"openenv": Part(-0.125)},
    )  # fmt: skip


async def test_a_server_that_cannot_be_used_is_named() -> None:
    async with guess_server() as server:
        server.schema = {"title": "CallToolAction"}
        with pytest.raises(EnvironmentUnusable, match="headrace environment verifiers openenv"):
            async with openenv_environment(OpenEnvConfig(server.url, [{}])):
                pass
    with pytest.raises(EnvironmentUnusable, match=r"no environment of OpenEnv answers at http://127.0.0.1:9/schema"):
        async with openenv_environment(OpenEnvConfig("http://127.0.0.1:9", [{}])):
            pass


async def test_the_same_reset_is_the_same_task_in_each_epoch() -> None:
    async with guess_server() as server:
        config = OpenEnvConfig(server.url, [{"seed": 1}, {"seed": 2}], epochs=2)
        async with openenv_environment(config) as environment:
            tasks = [await environment.next_task() for _ in range(5)]
    ids = [task and task.task_id for task in tasks]
    assert ids[:2] == ids[2:4]
    assert len(set(ids[:2])) == 2
    assert ids[4] is None
    assert [task and task.facts["epoch"] for task in tasks] == [0, 0, 1, 1, None]


@pytest.mark.parametrize(
    ("text", "schema", "action"),
    [
        (' {"guess": 3} ', NUMBER, {"guess": 3}),
        ("3", NUMBER, {"guess": 3}),
        ('```json\n{"guess": 3}\n```', NUMBER, {"guess": 3}),
        ("hello there", TEXT, {"message": "hello there"}),
        ("```", TEXT, {"message": "```"}),
        ('{"x": 1, "y": 2}', TWO, {"x": 1, "y": 2}),
    ],
)
def test_what_is_an_action(text: str, schema: dict[str, Any], action: dict[str, Any]) -> None:
    assert action_of(text, schema) == action


@pytest.mark.parametrize(("text", "schema"), [("three", NUMBER), ("", NUMBER), ("[1, 2]", TWO), ("up", TWO)])
def test_what_is_no_action(text: str, schema: dict[str, Any]) -> None:
    with pytest.raises(NoAction):
        action_of(text, schema)
