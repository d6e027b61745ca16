"""Whatever an environment's server says, a rollout has a result with a label: no reply of it ends the run."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from headrace.agents.environments.environment import Cause, EnvironmentUnusable, RolloutResult, Seat
from headrace.agents.environments.nemo_gym import NemoGymConfig, nemo_gym_environment
from headrace.agents.environments.openenv import OpenEnvConfig, openenv_environment
from headrace.agents.environments.outcome import checked
from headrace.agents.environments.replies import MAX_BODY
from tests.local_server import serving

SCHEMA = b'{"action": {"title": "GuessAction", "properties": {"guess": {"type": "integer"}}, "required": ["guess"]}}'
OBSERVED = b'{"type": "observation", "data": {"observation": {}, "reward": null, "done": false}}'
DEEP = b"[" * 100_000
HUGE = b"1" + b"0" * 400
ROW = {"responses_create_params": {"input": "Cold?", "tools": [{"type": "function", "name": "look"}]}}


class Server:
    """Says what it is told to say, to anybody; it is the policy, too."""

    def __init__(self) -> None:
        self.url = ""
        self.said: dict[str, bytes] = {"schema": SCHEMA, "seed_session": b"{}", "verify": b'{"reward": 1}'}
        self.socket: Sequence[bytes] = ()
        self.policy: list[str] = []
        self.type = "application/json"

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.Response(body=self.said[name], headers={"content-type": self.type})

    async def play(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for said in self.socket:
            await socket.receive()
            await socket.send_str(said.decode())
        return socket

    async def chat(self, request: web.Request) -> web.Response:
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": self.policy.pop(0)}}]})

    async def responses(self, request: web.Request) -> web.Response:
        call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": self.policy.pop(0)}
        return web.json_response({"output": [call] if self.policy else [{"type": "message", "content": []}]})


@asynccontextmanager
async def running() -> AsyncIterator[Server]:
    server, app = Server(), web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/v1/responses", server.responses)
    app.router.add_get("/ws", server.play)
    app.router.add_route("*", "/{name}", server.answer)
    async with serving(app, shutdown_timeout=0.1) as server.url:
        yield server


async def openenv(server: Server, *socket: bytes, answers: Sequence[str] = ("1", "2", "3")) -> RolloutResult:
    server.socket, server.policy = socket, [*answers]
    config = OpenEnvConfig(server.url, [{"seed": 1}], max_turns=len(answers))
    async with openenv_environment(config) as environment:
        task = await environment.next_task()
        assert task is not None
        return checked(await environment.attempt(task, Seat("session", f"{server.url}/v1", "policy", {})))


async def gym(server: Server, *, arguments: str = "{}", **said: bytes) -> RolloutResult:
    server.said |= said
    server.policy = [arguments, ""]
    async with nemo_gym_environment(NemoGymConfig(server.url, [ROW], "weather")) as environment:
        task = await environment.next_task()
        assert task is not None
        return checked(await environment.attempt(task, Seat("session", f"{server.url}/v1", "policy", {})))


def observed(reward: bytes) -> bytes:
    return b'{"type": "observation", "data": {"observation": {}, "reward": ' + reward + b', "done": true}}'


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"{", b"null", b"[]", b"{}", b'{"data": null}', b'{"data": []}', b'{"data": {"done": false}}', DEEP),
        *map(observed, (b'"1"', b"[]", b"{}", b"NaN", b"Infinity", b"-1e999", HUGE, b"1e300")),
    ],
)
async def test_what_openenv_must_not_say_is_a_failure(said: bytes) -> None:
    async with running() as server:
        stepped = await openenv(server, OBSERVED, said)
        assert stepped.failure is not None
        assert stepped.failure.cause is Cause.ROLLOUT
        if b'"reward"' not in said:
            begun = await openenv(server, said)
            assert begun.failure is not None
            assert (begun.failure.label, begun.failure.cause) == ("environment_failed", Cause.INFRASTRUCTURE)


async def test_an_observation_without_a_reward_and_a_nested_action_are_no_failure() -> None:
    async with running() as server:
        nested = ["[" * 100_000, '{"guess": ' + "[" * 400 + "]" * 400 + "}", "[" * 900 + "]" * 900, "4"]
        result = await openenv(server, OBSERVED, observed(b"null"), answers=nested)
    assert (result.failure, result.metrics["invalid_actions"], result.metrics["steps"]) == (None, 3.0, 1.0)


@pytest.mark.parametrize("schema", [b"[]", b"{}", b'{"action": 3}', b"{", b"null", DEEP])
async def test_a_schema_that_is_none_is_named(schema: bytes) -> None:
    async with running() as server:
        server.said["schema"] = schema
        with pytest.raises(EnvironmentUnusable, match="/schema"):
            await openenv(server, OBSERVED)


@pytest.mark.parametrize("action", [{"required": ["guess"]}, {"required": "x"}, {"required": [3], "properties": []}])
async def test_a_schema_with_holes_refuses_text_as_no_json(action: dict[str, Any]) -> None:
    async with running() as server:
        server.said["schema"] = json.dumps({"action": action}).encode()
        result = await openenv(server, OBSERVED, answers=["four"])
    assert (result.failure, result.metrics["invalid_actions"]) == (None, 1.0)


NO_ANSWERS = (b"", b"{", b"null", b"[]", b'"x"', DEEP, b"\xff\xfe")


@pytest.mark.parametrize("said", [*NO_ANSWERS, b"{}", b'{"reward": "1"}', b'{"reward": null}', b'{"reward": [1]}'])
async def test_a_verdict_that_is_none_is_a_failure_that_the_policy_can_bring_about(said: bytes) -> None:
    async with running() as server:
        failure = (await gym(server, look=b"", verify=said)).failure
    assert failure is not None
    assert (failure.label, failure.cause) == ("environment_failed", Cause.ROLLOUT)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", HUGE, b"1e300", b"-1e999"])
async def test_a_reward_that_no_trajectory_can_have_is_a_failure(number: bytes) -> None:
    async with running() as server:
        failure = (await gym(server, look=b"", verify=b'{"reward": ' + number + b"}")).failure
    assert failure is not None
    assert (failure.label, failure.cause) == ("reward_not_finite", Cause.ROLLOUT)


async def test_figures_of_a_verifier_that_are_no_numbers_do_not_spoil_its_reward() -> None:
    async with running() as server:
        verdict = b'{"reward": 0.5, "a": NaN, "b": ' + HUGE + b', "c": "x", "d": 2}'
        result = await gym(server, look=b"", verify=verdict)
    assert result.failure is None
    assert result.metrics["d"] == 2.0


@pytest.mark.parametrize("said", NO_ANSWERS)
async def test_a_seed_that_is_no_answer_is_no_failure_of_the_policy(said: bytes) -> None:
    async with running() as server:
        failure = (await gym(server, seed_session=said)).failure
    assert failure is not None
    assert (failure.label, failure.cause) == ("environment_failed", Cause.INFRASTRUCTURE)


@pytest.mark.parametrize("kind", ["application/json; charset=nonsense", "image/png", "text/plain; charset=utf-7"])
async def test_a_tool_may_answer_anything(kind: str) -> None:
    async with running() as server:
        server.said["look"] = b"\xff\xfe\x00{"
        server.type = kind
        assert (await gym(server)).failure is None
        server.said["look"] = b"x" * (MAX_BODY + 1)
        assert (await gym(server)).failure is None


async def test_a_body_beyond_the_largest_is_a_failure() -> None:
    async with running() as server:
        failure = (await gym(server, look=b"", verify=b'{"reward": 1, "x": "' + b"x" * MAX_BODY + b'"}')).failure
    assert failure is not None
    assert failure.label == "environment_failed"


async def test_nested_arguments_of_a_tool_are_an_error_of_the_call() -> None:
    async with running() as server:
        result = await gym(server, look=b"", arguments="[" * 100_000)
    assert (result.failure, result.metrics["tool_errors"]) == (None, 1.0)
