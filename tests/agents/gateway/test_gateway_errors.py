"""What a gateway answers to requests that it cannot serve: in the form of each API, and without a trace on the log."""

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.gateway import tenants
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.render_bodies import PATHS
from headrace.schemas.events import ModelCalled, Role, TrajectoryEnded, TrajectoryStarted
from tests.agents.gateway.running import RunningGateway, assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import Fault, Reply, ScriptedEngine, answering

APIS = pytest.mark.parametrize("api", list(Api))
USER = {"role": "user", "content": "hi"}
TOO_LONG = 10 * 1024 * 1024

OPENAI = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", "permission_denied"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "service_unavailable"),
}
ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def body_of(api: Api, text: Any = "hi") -> dict[str, Any]:
    """The smallest valid request."""
    match api:
        case Api.COMPLETIONS:
            return {"model": "policy", "prompt": text}
        case Api.RESPONSES:
            return {"model": "policy", "input": [{"role": "user", "content": text}]}
        case _:
            return {"model": "policy", "max_tokens": 16, "messages": [{"role": "user", "content": text}]}


def assert_error(gateway: RunningGateway, api: Api | None, status: int, found: tuple[int, Any], says: str = "") -> None:
    """``status``: that of OpenAI's API."""
    assert gateway.headers["Content-Type"] == "application/json", found
    if api is Api.MESSAGES:
        status = {503: 529}.get(status, status)
        assert found[0] == status, found
        error = found[1]["error"]
        assert (found[1]["type"], error["type"]) == ("error", ANTHROPIC[status])
        assert gateway.headers["request-id"] == found[1]["request_id"]
    else:
        assert found[0] == status, found
        error = found[1]["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == OPENAI[status]
        assert gateway.headers["x-request-id"].startswith("req_")
    assert says in error["message"]
    assert error["message"]


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with answering("fine") as engine:
        yield engine


@pytest.fixture
async def gateway(tmp_path: Path, engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    """A gateway at which nothing succeeds: no event, session or call may be left."""
    async with running_gateway(tmp_path, [engine.url], max_request_bytes=24 * 1024 * 1024) as gateway:
        yield gateway
        assert (gateway.calls_in_flight, gateway.sessions) == (0, 0)
    assert recorded_in(tmp_path) == []
    assert engine.requests == []


@APIS
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"\xff\xfe", "body"),
        (b"[1]", "JSON object"),
        (b'"text"', "JSON object"),
        (b'{"a": NaN}', "body"),
        (b'{"a": "\\ud800"}', "body"),
        (deep(10_000).encode(), "body"),
        (b'{"a": ' + deep(10_000).encode() + b"}", "body"),
    ],
)
async def test_what_is_no_json_object(gateway: RunningGateway, api: Api, data: bytes, says: str) -> None:
    assert_error(gateway, api, 400, await gateway.post(PATHS[api], data), says)


@APIS
async def test_a_model_that_is_not_served(gateway: RunningGateway, api: Api) -> None:
    found = await gateway.post(PATHS[api], body_of(api) | {"model": "gpt-9"})
    assert_error(gateway, api, 404, found, "use one of policy")


@APIS
async def test_a_conversation_that_is_none(gateway: RunningGateway, api: Api) -> None:
    for wrong in ("messages", "input", "prompt"):
        body = body_of(api)
        if wrong in body:
            for value in (
                7,
                {},
                [],
                ["x"],
                [{"role": "wizard", "content": "x"}],
                [{"role": "user", "content": 7}],
                None,
            ):
                found = await gateway.post(PATHS[api], body | {wrong: value})
                assert_error(gateway, api, 400, found)


@pytest.mark.parametrize(
    ("api", "block"),
    [
        (Api.CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
        (Api.MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}),
        (Api.RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}),
    ],
)
async def test_an_image(gateway: RunningGateway, api: Api, block: dict[str, Any]) -> None:
    found = await gateway.post(PATHS[api], body_of(api, [block]))
    assert_error(gateway, api, 400, found, "text and tool calls only")


@APIS
async def test_no_depth_of_nesting_is_a_failure(tmp_path: Path, engine: ScriptedEngine, api: Api) -> None:
    rest = json.dumps(body_of(api))[1:]
    async with running_gateway(tmp_path, [engine.url]) as gateway:
        for levels in (60, 100, 400, *range(900, 1_000, 2), 1_500):
            value = f'{{"type": "x", "deep": {deep(levels)}}}'
            tools = f'[{{"type": "function", "name": "f", "function": {{"name": "f", "parameters": {value}}}}}]'
            fields = dict.fromkeys(("tool_choice", "metadata", "response_format", "text", "thinking", "extra"), value)
            for field, text in (fields | {"tools": tools}).items():
                status, answer = await gateway.post(PATHS[api], f'{{"{field}": {text}, {rest}'.encode())
                assert status in (200, 400), (field, levels, answer)
        assert gateway.calls_in_flight == 0


@APIS
async def test_a_prompt_beyond_the_models_context(gateway: RunningGateway, api: Api) -> None:
    found = await gateway.post(PATHS[api], body_of(api, "word " * (TOO_LONG // 5)))
    assert_error(gateway, api, 400, found, "maximum context length")


@APIS
async def test_a_prompt_that_leaves_no_room_for_an_answer(gateway: RunningGateway, api: Api) -> None:
    found = await gateway.post(PATHS[api], body_of(api, "word " * 4096))
    assert_error(gateway, api, 400, found, "maximum context length")


@APIS
async def test_a_body_that_is_too_large(gateway: RunningGateway, api: Api) -> None:
    found = await gateway.post(PATHS[api], b" " * (24 * 1024 * 1024 + 1))
    assert_error(gateway, api, 413, found, "max_request_bytes")


@APIS
async def test_a_compressed_body(gateway: RunningGateway, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    zipped = {"Content-Encoding": "gzip"}
    found = await gateway.post(PATHS[api], gzip.compress(b" " * (64 * 1024 * 1024)), headers=zipped)
    assert_error(gateway, api, 413, found, "max_request_bytes")
    found = await gateway.post(PATHS[api], b"no gzip", headers=zipped)
    assert_error(gateway, api, 400, found, "cannot be read: Can not decode content-encoding: gzip")
    await gateway.get("/v1/models")  # aiohttp reads what is left of a body after it has answered
    assert "Traceback" not in caplog.text


async def test_an_unknown_path_is_answered_with_those_that_exist(gateway: RunningGateway) -> None:
    found = await gateway.post("/v1/embeddings", {})
    endpoints = (
        "GET /v1/models and POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and /sessions"
    )
    assert_error(gateway, None, 404, found, endpoints)
    assert_error(gateway, None, 404, await gateway.get("/v1/chat/completions"), "which has GET /v1/models and POST ")


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/chat/completions", "/v1/images/generations", "/s//v1/models"])
async def test_an_unknown_path(gateway: RunningGateway, path: str) -> None:
    assert_error(gateway, None, 404, await gateway.post(path, {}), "is not an endpoint")
    assert_error(gateway, None, 404, await gateway.get(path), "is not an endpoint")


async def test_an_error_of_no_endpoint_has_the_form_of_the_client(gateway: RunningGateway) -> None:
    assert_error(gateway, Api.MESSAGES, 404, await gateway.get("/v1/messages"), "GET /v1/messages is not")
    assert_error(gateway, Api.MESSAGES, 404, await gateway.post("/v1/messages/batches", {}))
    anthropic = {"anthropic-version": "2023-06-01"}
    assert_error(gateway, Api.MESSAGES, 404, await gateway.get("/v1/files", headers=anthropic))
    assert_error(gateway, Api.MESSAGES, 404, await gateway.get("/v1/models/other", headers=anthropic))
    assert_error(gateway, None, 404, await gateway.get("/v1/models/other"))
    assert_error(gateway, None, 404, await gateway.get("/v1/chat/completions"))


@APIS
async def test_the_request_after_a_refused_one_is_the_first_of_its_session(tmp_path: Path, api: Api) -> None:
    replies = Reply(fault=Fault.REFUSED), "fine"
    async with answering(*replies) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        path = f"/s/s1{PATHS[api]}"
        assert_error(gateway, api, 400, await gateway.post(path, body_of(api)), "the grammar is invalid")
        too_long = body_of(api, "word " * 5_000)
        assert_error(gateway, api, 400, await gateway.post(path, too_long), "maximum context length")
        assert gateway.calls_in_flight == 0
        assert (await gateway.post(path, body_of(api, "something else")))[0] == 200
        assert gateway.headers["x-headrace-outcome"] == "new_trajectory"
    started, called = recorded_in(tmp_path)
    assert isinstance(started.fact, TrajectoryStarted)
    assert started.fact.role is Role.TRAINABLE
    assert (started.trajectory_id, started.seq) == (called.trajectory_id, 0)


async def test_a_refused_request_loses_no_event_of_others(tmp_path: Path, engine: ScriptedEngine) -> None:
    async with running_gateway(tmp_path, [engine.url], max_sessions=1) as gateway:
        assert (await gateway.post("/s/a/v1/chat/completions", body_of(Api.CHAT)))[0] == 200
        too_long = body_of(Api.CHAT, "word " * 5_000)
        assert (await gateway.post("/s/b/v1/chat/completions", too_long))[0] == 400
        assert gateway.sessions == 0
    events = recorded_in(tmp_path)
    assert [type(each.fact) for each in events] == [TrajectoryStarted, ModelCalled, TrajectoryEnded]
    assert len({each.trajectory_id for each in events}) == 1


async def test_of_two_first_requests_the_refused_one_leaves_the_other_alone(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    async with running_gateway(tmp_path, [engine.url]) as gateway:
        path = "/s/a/v1/chat/completions"
        for number in range(10):
            bodies = [body_of(Api.CHAT, f"{number}"), body_of(Api.CHAT, "word " * 5_000)]
            both = [gateway.post(path, bodies[(number + each) % 2]) for each in range(2)]
            assert sorted([found[0] for found in await asyncio.gather(*both)]) == [200, 400]
        assert gateway.calls_in_flight == 0
    events = recorded_in(tmp_path)
    assert len(calls_in(events)) == 10
    assert_exact(events)


def keys_file(folder: Path, **tenants: str) -> Path:
    """A file of keys: tenant → its key."""
    path = folder / "keys.json"
    keys = [{"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": name} for name, key in tenants.items()]
    path.write_text(json.dumps({"keys": keys}))
    return path


@APIS
async def test_keys(tmp_path: Path, engine: ScriptedEngine, api: Api) -> None:
    keys = keys_file(tmp_path, acme="secret-a", other="secret-b")
    async with running_gateway(tmp_path / "gateway", [engine.url], keys=keys) as gateway:
        path, body = PATHS[api], body_of(api)
        assert_error(gateway, api, 401, await gateway.post(path, body, key=""), "no API key was sent: send one")
        unknown = "the API key is not known: send one of the gateway's keys (gateway.keys)"
        assert_error(gateway, api, 401, await gateway.post(path, body, key="secret"), unknown)
        assert_error(gateway, api, 401, await gateway.post(path, body, key="é" * 20), "not known")
        assert_error(gateway, api, 401, await gateway.post(path, body, key="x" * 5_000), "not known")
        status, opened = await gateway.post("/sessions", {}, key="secret-a")
        assert status == 201
        forged = opened["api_key"][:-1] + ("A" if opened["api_key"][-1] != "A" else "B")
        assert_error(gateway, api, 401, await gateway.post(path, body, key=forged), "forged or expired")
        foreign = f"/s/{opened['session']}{path}"
        assert_error(gateway, api, 403, await gateway.post(foreign, body, key="secret-b"), "does not belong")
        other = f"/s/mine{path}"
        assert_error(gateway, api, 403, await gateway.post(other, body, key=opened["api_key"]), "does not belong")
        assert (await gateway.post(path, body, key=opened["api_key"]))[0] == 200
        given = {"Authorization": "", "x-api-key": "secret-a"}
        assert (await gateway.post(foreign, body, headers=given))[0] == 200
        assert gateway.calls_in_flight == 0
    assert len(engine.requests) == 2


async def test_a_key_is_withdrawn_while_the_gateway_runs(
    tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "KEYS_EVERY_S", 0.02)
    keys = keys_file(tmp_path, acme="leaked", other="secret-b")
    async with running_gateway(tmp_path / "gateway", [engine.url], keys=keys) as gateway:
        path, body = PATHS[Api.CHAT], body_of(Api.CHAT)
        status, opened = await gateway.post("/sessions", {}, key="leaked")
        assert status == 201
        keys_file(tmp_path, acme="renewed", other="secret-b")
        for _ in range(500):
            if (await gateway.post(path, body, key="renewed"))[0] == 200:
                break
            await asyncio.sleep(0.02)
        assert_error(gateway, Api.CHAT, 401, await gateway.post(path, body, key="leaked"), "not known")
        for key in ("renewed", "secret-b", opened["api_key"]):  # the session is the tenant's, not the withdrawn key's
            assert (await gateway.post(path, body, key=key))[0] == 200


async def test_two_tenants_with_one_session_id_share_nothing(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, acme="secret-a", other="secret-b")
    async with answering("One.") as engine:
        async with running_gateway(tmp_path / "gateway", [engine.url], keys=keys) as gateway:
            for key in ("secret-a", "secret-b"):
                assert (await gateway.post("/s/s1/v1/responses", body_of(Api.RESPONSES), key=key))[0] == 200
            assert gateway.sessions == 2
            status, mine = await gateway.post("/v1/responses", body_of(Api.RESPONSES), key="secret-a")
            assert status == 200
            assert (await gateway.get(f"/v1/responses/{mine['id']}", key="secret-a"))[0] == 200
            assert (await gateway.get(f"/v1/responses/{mine['id']}", key="secret-b"))[0] == 404
            body = body_of(Api.RESPONSES) | {"previous_response_id": mine["id"]}
            assert (await gateway.post("/v1/responses", body, key="secret-b"))[0] == 400
            assert (await gateway.send("DELETE", f"/v1/responses/{mine['id']}", key="secret-b"))[0] == 404
            assert (await gateway.post("/v1/responses", body, key="secret-a"))[0] == 200
            salts = [each["cache_salt"] for each in engine.requests]
        assert salts[0] != salts[1]
        assert salts[0] == salts[2]


@APIS
@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ({"requests_per_s": 0.1}, "its requests per second (gateway.requests_per_s): try again in "),
        ({"tokens_per_s": 0.001}, "its tokens per second (gateway.tokens_per_s): try again in "),
        ({"bytes_per_s": 25.0}, "gateway.bytes_per_s"),
    ],
)
async def test_limits_of_a_key(
    tmp_path: Path, engine: ScriptedEngine, api: Api, limit: dict[str, Any], says: str
) -> None:
    async with running_gateway(tmp_path, [engine.url], **limit) as gateway:
        data = json.dumps(body_of(api)).ljust(200).encode()
        assert (await gateway.post(PATHS[api], data))[0] == 200
        assert_error(gateway, api, 429, await gateway.post(PATHS[api], data), says)
        assert int(gateway.headers["Retry-After"]) >= 1
        assert gateway.calls_in_flight == 0
    assert len(engine.requests) == 1


@APIS
async def test_a_request_that_is_broken_counts_towards_the_limits(
    tmp_path: Path, engine: ScriptedEngine, api: Api
) -> None:
    async with running_gateway(tmp_path, [engine.url], requests_per_s=0.1) as gateway:
        assert_error(gateway, api, 400, await gateway.post(PATHS[api], b"{"), "body")
        assert_error(gateway, api, 429, await gateway.post(PATHS[api], b"{"), "its requests per second")
    assert engine.requests == []
