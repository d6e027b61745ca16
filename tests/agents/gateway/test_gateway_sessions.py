"""Sessions that a program opens, and feedback, over HTTP."""

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pydantic import BaseModel

from headrace.agents.gateway import gateway as gateway_process
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.recorder import Recorder
from headrace.agents.gateway.session_endpoints import FEEDBACK_BURST, MAX_FEEDBACK_BYTES
from headrace.agents.gateway.session_grants import (
    MAX_ANSWER_BYTES,
    MAX_TASK_BYTES,
    EndRequest,
    FeedbackRequest,
    SessionRequest,
)
from headrace.agents.sdk import Headrace
from headrace.agents.spool import Spool
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import (
    EndStatus,
    FeedbackGiven,
    ModelCalled,
    Purpose,
    Role,
    TrajectoryEnded,
    TrajectoryStarted,
)
from tests.agents.gateway.http_clients import CONVERSATIONS, ChatHttp, HttpClient
from tests.agents.gateway.running import RunningGateway, assert_exact, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import answering, until
from tests.agents.sdk_helpers import NOWHERE

TASK: dict[str, Any] = {
    "task_id": "issue-17", "group_id": "g-1", "group_size": 8, "cohort_key": "c", "agent": "solver",
    "harness_version": "1.2", "purpose": "evaluate", "task": {"question": "why?"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_line", "model"),
    [
        ("POST /sessions", SessionRequest),
        ("POST /sessions/{session}/end", EndRequest),
        ("POST /feedback/{token}", FeedbackRequest),
    ],
)
def test_the_page_names_every_field_of_a_request(request_line: str, model: type[BaseModel]) -> None:
    page = (Path(__file__).parents[3] / "agents" / "gateway" / "README.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{request_line}` | ")]
    assert [name for name in model.model_fields if f"`{name}`" not in row] == []
    if model is EndRequest:
        assert [status for status in EndStatus if f"`{status}`" not in row] == []


async def opened(gateway: RunningGateway, **asked: Any) -> dict[str, Any]:
    status, answer = await gateway.post("/sessions", asked)
    assert status == 201, answer
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("way", ["key", "url"])
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_a_session_from_its_opening_to_its_outcome(tmp_path: Path, kind: type[HttpClient], way: str) -> None:
    async with answering("One.", "Two.") as engine, running_gateway(tmp_path, [engine.url], run="night") as gateway:
        session = await opened(gateway, **TASK)
        key = session["api_key"]
        assert session["base_url"] == f"{gateway.url}/s/{session['session']}/v1"
        assert session["anthropic_base_url"] + "/v1" == session["base_url"]
        base = "" if way == "key" else session["anthropic_base_url"].removeprefix(gateway.url)
        client = kind(gateway, base=base, headers={"Authorization": f"Bearer {key}"} if way == "key" else {})
        assert await client.turn("a") == "One."
        assert await client.turn("b") == "Two."
        assert gateway.headers["x-headrace-trajectory"] == session["trajectory"]
        ended = f"/sessions/{session['session']}/end"
        status, answer = await gateway.post(ended, {"outcome": 1}, key=key)
        assert (status, "reports no outcome" in answer["error"]["message"]) == (403, True)
        status, answer = await gateway.post(ended, {"status": "restarted"}, key=key)  # it would escape its reward
        assert (status, "as restarted" in answer["error"]["message"]) == (403, True)
        status, answer = await gateway.post(ended, {}, key=key)  # it would come before its outcome
        assert (status, "a member of a group" in answer["error"]["message"]) == (403, True)
        assert await gateway.post(ended, {"outcome": 1, "status": "completed"}) == (
            200, {"session": session["session"], "ended": True},
        )  # fmt: skip
        status, answer = await gateway.post(ended, {})
        assert (status, "was idle for longer than gateway.idle_s" in answer["error"]["message"]) == (
            404,
            True,
        )
        assert gateway.sessions == 0
    events = recorded_in(tmp_path)
    assert {each.trajectory_id for each in events} == {session["trajectory"]}
    started, *_, end = (each.fact for each in events)
    assert isinstance(started, TrajectoryStarted)
    assert {name: getattr(started, name) for name in TASK} == TASK
    assert (started.run, started.role, started.consent) == ("night", Role.TRAINABLE, True)
    assert isinstance(end, TrajectoryEnded)
    assert (end.status, end.outcome, end.answer) == (EndStatus.COMPLETED, 1.0, "Two.")
    assert assert_exact(events) == 1


async def test_a_session_s_key_makes_no_second_member_of_its_group_after_its_end(tmp_path: Path) -> None:
    async with answering("One.", "Two.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway, **TASK)
        headers = {"Authorization": f"Bearer {session['api_key']}"}
        await ChatHttp(gateway, base="", headers=headers).turn("a")
        assert (await gateway.post(f"/sessions/{session['session']}/end", {}))[0] == 200
        await ChatHttp(gateway, base="", headers=headers).turn("a second attempt")
    starts = [each.fact for each in recorded_in(tmp_path) if isinstance(each.fact, TrajectoryStarted)]
    assert [start.group_id for start in starts].count(TASK["group_id"]) == 1


@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_a_member_of_a_group_does_not_say_which_request_is_its_last(
    tmp_path: Path, kind: type[HttpClient]
) -> None:
    async with answering("One.", "Two.", "Three.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        for group, answered in (({"group_id": "g-1", "group_size": 8}, False), ({}, True)):
            session = await opened(gateway, task_id="issue-17", **group)
            headers = {"Authorization": f"Bearer {session['api_key']}"}
            client = kind(gateway, base="", headers=headers)
            await client.turn("a")
            client.headers = {**headers, "x-headrace-final": "1"}
            if answered:
                await client.turn("b")
            else:
                with pytest.raises(AssertionError, match="a member of a group"):
                    await client.turn("b")
            status, _ = await gateway.post(f"/sessions/{session['session']}/end", {"outcome": 0.0})
            assert status == (404 if answered else 200)


@pytest.mark.parametrize("masked", [False, True])
async def test_a_program_says_what_came_of_its_session(tmp_path: Path, masked: bool) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps({"keys": [{"sha256": hashlib.sha256(b"k").hexdigest(), "tenant": "a", "masked": masked}]})
    )
    result = {"chunk_ids": ["c17"], "retrieved": ["c17", None, 2.5]}
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url], keys=keys) as gateway:
        session = await opened(gateway)
        await ChatHttp(gateway, base="", headers={"Authorization": f"Bearer {session['api_key']}"}).turn("a")
        ended = f"/sessions/{session['session']}/end"
        for wrong, field in (({"answer": "x" * MAX_ANSWER_BYTES}, "answer"), ({"result": result}, "result")):
            status, refused = await gateway.post(ended, wrong)
            assert (status, field in refused["error"]["message"]) == (400, True), refused
        assert (await gateway.post(ended, {"status": "budget_exhausted", "answer": result}))[0] == 200
        feedback = {"signal": "accepted", "value": 1.0, "comment": "one is right"}
        assert (await gateway.post(f"/feedback/{session['feedback_token']}", feedback))[0] == 202
    *_, end, given = (each.fact for each in recorded_in(tmp_path))
    assert isinstance(end, TrajectoryEnded)
    assert (end.status, end.answer) == (EndStatus.BUDGET_EXHAUSTED, None if masked else result)
    assert given == FeedbackGiven(signal="accepted", value=1.0, comment=None if masked else "one is right")


@pytest.mark.parametrize("url", ["agents.example.com", "ftp://agents.example.com", "https://", "http://agents:99999"])
def test_a_public_address_with_which_no_client_could_call_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match=f"public_url is {url}: expected https://HOST"):
        GatewayConfig(bootstrap=NOWHERE, engines=("http://gpu:8000",), port=8200, folder=tmp_path, public_url=url)


@pytest.mark.parametrize("url", ["gpu:8000", "http://gpu:8000/v1", "https://gpu:8000/v1/", "http://"])
def test_an_engine_s_address_is_refused_where_no_engine_can_be(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match=f"engines has {url}: expected http://HOST:PORT, without /v1"):
        GatewayConfig(bootstrap=NOWHERE, engines=("http://gpu:8001", url), port=8200, folder=tmp_path)


async def test_a_token_of_the_sdk_for_no_tenant_is_for_that_of_a_gateway_without_keys(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway)
        secret = (tmp_path / "secret").read_bytes()
        sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0, feedback_secret=secret)
        token = sdk.create_feedback_token(session["trajectory"], expires_in_s=60)
        sdk.close()
        assert (await gateway.post(f"/feedback/{token}", {"value": 1.0, "comment": "one is right"}))[0] == 202
    assert recorded_in(tmp_path)[-1].fact == FeedbackGiven(signal="score", value=1.0, comment="one is right")


async def test_a_session_may_withdraw_consent_and_choose_its_id(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway, session="my {session}/7 ü?", consent=False, lifetime_s=60)
        assert session["session"] == "my {session}/7 ü?"
        async with gateway.http.post(
            session["base_url"] + "/chat/completions",
            json={"model": "policy", "messages": [{"role": "user", "content": "x"}]},
        ) as response:
            assert response.status == 200
            assert response.headers["x-headrace-trajectory"] == session["trajectory"]
        status, answer = await gateway.post("/sessions", {"session": "my {session}/7 ü?"})
        assert (status, "is open already" in answer["error"]["message"]) == (400, True)
        url = session["anthropic_base_url"].replace("/s/", "/sessions/") + "/end"
        async with gateway.http.post(url, json={}) as response:
            assert response.status == 200
        assert (await opened(gateway, session="my {session}/7 ü?"))["trajectory"] != session["trajectory"]
    started = recorded_in(tmp_path)[0].fact
    assert isinstance(started, TrajectoryStarted)
    assert started.consent is False
    assert started.task_id == "my {session}/7 ü?"


async def test_all_trajectories_of_an_evaluation_are_evaluations(tmp_path: Path) -> None:
    async with answering("One.") as engine:
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            session = await opened(gateway, purpose="evaluate")
            url = session["anthropic_base_url"].removeprefix(gateway.url)
            await ChatHttp(gateway, base=url).turn("a title")
            await ChatHttp(gateway, base=url).with_tool("bash").turn("the agent")
            assert gateway.headers["x-headrace-outcome"] == "new_trajectory"
            subagent = {"x-claude-code-session-id": "c", "x-claude-code-agent-id": "a"}
            await ChatHttp(gateway, base=url, headers=subagent).with_tool("bash").turn("find it")
            assert gateway.headers["x-headrace-outcome"] == "subagent"
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            await ChatHttp(gateway, base=url).with_tool("bash").turn("another")
    starts = [each.fact for each in recorded_in(tmp_path) if isinstance(each.fact, TrajectoryStarted)]
    assert [start.purpose for start in starts] == [Purpose.EVALUATE] * 4


@pytest.mark.parametrize("asked", [{"consent": False}, {"purpose": "evaluate"}])
@pytest.mark.parametrize("own_id", [{}, {"session": "mine"}])
@pytest.mark.parametrize("way", ["url", "history"])
async def test_what_must_not_be_trained_on_outlives_its_session(
    tmp_path: Path, asked: dict[str, Any], own_id: dict[str, str], way: str
) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway, **asked, **own_id)
        url = session["anthropic_base_url"].removeprefix(gateway.url)
        client = ChatHttp(gateway, base=url)
        await client.turn("private")
        assert (await gateway.post(f"/sessions/{session['session']}/end", {}))[0] == 200
        client.base = url if way == "url" else ""
        await client.turn("and more")  # with a key of the gateway: the program does not know that its session is over
        assert gateway.headers["x-headrace-outcome"] == "resumed"
        names = {"session-id": "c", "agent-id": "a", "parent-agent-id": "b"}
        subagent = {f"x-claude-code-{name}": value for name, value in names.items()}
        await ChatHttp(gateway, base=url, headers=subagent).turn("find it")
    assert [is_kept_out(start) for start in starts_in(tmp_path)] == [True] * 3


@pytest.mark.parametrize("asked", [{"consent": False}, {"purpose": "evaluate"}])
async def test_what_must_not_be_trained_on_is_in_the_session_s_id(tmp_path: Path, asked: dict[str, Any]) -> None:
    async with answering("One.") as engine:
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            session = await opened(gateway, **asked)
            assert (await gateway.post(f"/sessions/{session['session']}/end", {}))[0] == 200
        async with running_gateway(tmp_path, [engine.url]) as gateway:  # it remembers nothing of an ended session
            await ChatHttp(gateway, base=f"/s/{session['session']}").turn("private")
            await ChatHttp(gateway, base="/s/mine").turn("public")
    assert [is_kept_out(start) for start in starts_in(tmp_path)] == [True, True, False]


@pytest.mark.parametrize("asked", [{"consent": False}, {"purpose": "evaluate"}])
@pytest.mark.parametrize("is_over", [False, True])
async def test_what_must_not_be_trained_on_stays_out_under_another_name(
    tmp_path: Path, asked: dict[str, Any], is_over: bool
) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway, session="mine", **asked)
        client = ChatHttp(gateway, base=session["anthropic_base_url"].removeprefix(gateway.url))
        await client.turn("private")
        if is_over:
            assert (await gateway.post("/sessions/mine/end", {}))[0] == 200
        client.base, client.headers = "", {"x-session-id": "other"}
        await client.turn("and more")
        assert gateway.headers["x-headrace-outcome"] == "resumed"
        subagent = ChatHttp(gateway, base="", headers={"x-session-id": "found", "x-parent-session-id": "mine"})
        await subagent.turn("find it")
        await ChatHttp(gateway, base="", headers={"x-session-id": "unrelated"}).turn("public")
    assert [is_kept_out(start) for start in starts_in(tmp_path)] == [True, True, True, False]


async def test_what_must_not_be_trained_on_stays_out_of_a_session_that_may_be(tmp_path: Path) -> None:
    async with answering("One.", "Two.", "Three.") as engine:
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            await opened(gateway, session="mine", consent=False)
            private, public = ChatHttp(gateway, base="/s/mine"), ChatHttp(gateway, base="/s/other")
            for client in (private, public):
                await client.turn("the same beginning")
            for private.base in ("/s/other", "/s/third"):
                await private.turn("and more")
            assert (await gateway.post("/sessions/other/end", {}))[0] == 200
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            await ChatHttp(gateway, base="/s/other").turn("public")
    assert [is_kept_out(start) for start in starts_in(tmp_path)] == [True, False, True, True, False]


@pytest.mark.parametrize("asked", [{"consent": False}, {"purpose": "evaluate"}])
async def test_what_must_not_be_trained_on_stays_out_after_a_restart(tmp_path: Path, asked: dict[str, Any]) -> None:
    async with answering("One.") as engine:
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            for name in ("mine", "silent"):
                await opened(gateway, session=name, **asked)
            client = ChatHttp(gateway, base="/s/mine")
            await client.turn("private")
            for name in ("mine", "silent"):
                assert (await gateway.post(f"/sessions/{name}/end", {}))[0] == 200
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            client.gateway, client.base = gateway, ""
            await client.turn("and more")
            for name in ("mine", "silent", "unrelated"):
                await ChatHttp(gateway, base=f"/s/{name}").turn("hello")
    assert [is_kept_out(start) for start in starts_in(tmp_path)] == [True, True, True, True, True, False]


def starts_in(folder: Path) -> list[TrajectoryStarted]:
    return [each.fact for each in recorded_in(folder) if isinstance(each.fact, TrajectoryStarted)]


def is_kept_out(start: TrajectoryStarted) -> bool:
    return not start.consent or start.purpose is Purpose.EVALUATE


async def test_a_session_that_is_opened_again_says_anew_whether_it_consents(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        for consent in (False, None):
            await opened(gateway, session="mine", consent=consent)
            assert (await gateway.post("/sessions/mine/end", {}))[0] == 200
        await ChatHttp(gateway, base="/s/mine").turn("a")
    starts = [each.fact for each in recorded_in(tmp_path) if isinstance(each.fact, TrajectoryStarted)]
    assert [start.consent for start in starts] == [False, True, True]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"session": ""}, "session"),
        ({"session": "a\x1fb"}, "session"),
        ({"session": "a\nb"}, "session"),
        ({"session": "."}, "session"),
        ({"session": ".."}, "session"),
        ({"session": "x" * 161}, "session"),
        ({"session": 7}, "session"),
        ({"group_size": 0}, "group_size"),
        ({"group_size": True}, "group_size"),
        ({"lifetime_s": 10**9}, "lifetime_s"),
        ({"purpose": "fun"}, "purpose"),
        ({"task": {"x": "y" * MAX_TASK_BYTES}}, "task"),
        ({"unknown": 1}, "unknown"),
        (dict.fromkeys(("task_id", "agent", "group_id", "cohort_key", "harness_version"), "漢" * MAX_NAME), "body"),
    ],
)
async def test_what_no_session_can_be_opened_with(tmp_path: Path, wrong: dict[str, Any], field: str) -> None:
    async with answering() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        status, answer = await gateway.post("/sessions", wrong)
        assert (status, answer["error"]["param"]) == (400, field), answer
        assert gateway.sessions == 0
    assert recorded_in(tmp_path) == []


async def test_a_key_as_long_as_may_be_is_accepted(tmp_path: Path) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        long = "漢" * 480
        session = await opened(gateway, task_id=long, agent=long, task={"a": "漢" * 300})
        assert len(session["api_key"]) > 4_000
        client = ChatHttp(gateway, base="", headers={"Authorization": f"Bearer {session['api_key']}"})
        await client.turn("hi")
        assert gateway.headers["x-headrace-trajectory"] == session["trajectory"]


async def test_a_session_that_cannot_be_recorded_is_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        with monkeypatch.context() as full:
            full.setattr(Spool, "append", lambda *_, **__: [])
            status, answer = await gateway.post("/sessions", {"session": "mine"})
            assert (status, gateway.headers["Retry-After"]) == (503, "5"), answer
            assert gateway.sessions == 0
        session = await opened(gateway, session="mine")
        assert (await ChatHttp(gateway, base="/s/mine").say("hi").ask()).texts == ("fine",)
    events = recorded_in(tmp_path)
    assert {each.trajectory_id for each in events} == {session["trajectory"]}
    assert_exact(events)


@pytest.mark.parametrize("host", ["[", "gateway:99999", "gateway:port", ""])
async def test_a_host_that_is_no_address_opens_no_session(tmp_path: Path, host: str) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        status, answer = await gateway.post("/sessions", {}, headers={"Host": host})
        assert (status, answer["error"]["param"]) == (400, "Host")
        assert gateway.sessions == 0
    assert recorded_in(tmp_path) == []


async def test_the_key_of_a_session_opens_no_other(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway, consent=False, lifetime_s=60)
        status, answer = await gateway.post("/sessions", {"lifetime_s": 86_400}, key=session["api_key"])
        assert (status, answer["error"]["type"]) == (403, "permission_error")
        assert gateway.sessions == 1


async def test_keys_and_tokens_expire(tmp_path: Path) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway, lifetime_s=60)
        body = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
        later = gateway_process._now_ms() + 61_000
        gateway.server._now_ms = gateway.server._sessions._now_ms = lambda: later
        assert (await gateway.post("/v1/chat/completions", body, key=session["api_key"]))[0] == 401
        assert (await gateway.post(f"/feedback/{session['feedback_token']}", {"value": 1}))[0] == 403
    assert [type(each.fact) for each in recorded_in(tmp_path)] == [TrajectoryStarted]


async def test_feedback(tmp_path: Path) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway)
        path = f"/feedback/{session['feedback_token']}"
        status, answer = await gateway.post(path, {"value": 0.5, "signal": "stars", "comment": "good 漢字"}, key="")
        assert (status, answer) == (202, {"accepted": True})
        assert gateway.headers["Access-Control-Allow-Origin"] == "*"
        status, data = await gateway.send("OPTIONS", path, key="", headers={"Origin": "https://shop.example"})
        assert (status, data) == (204, b"")
        assert gateway.headers["Access-Control-Allow-Methods"] == "POST"
        assert gateway.headers["Access-Control-Allow-Headers"] == "Content-Type"
        wrong: list[tuple[str, Any, int]] = [
            (path[:-1] + ("A" if path[-1] != "A" else "B"), {"value": 1}, 403),
            ("/feedback/fb_AAAA", {"value": 1}, 403),
            ("/feedback/" + session["api_key"], {"value": 1}, 403),
            (path, {}, 400),
            (path, {"value": "high"}, 400),
            (path, b'{"value": NaN}', 400),
            (path, {"value": 1, "comment": "x" * (MAX_FEEDBACK_BYTES + 1)}, 413),
            (path, {"value": 1, "signal": ""}, 400),
        ]
        for where, body, expected in wrong:
            status, answer = await gateway.post(where, body, key="")
            assert status == expected, (body, answer)
            assert gateway.headers["Access-Control-Allow-Origin"] == "*"
    (event,) = (each for each in recorded_in(tmp_path) if isinstance(each.fact, FeedbackGiven))
    assert (event.trajectory_id, event.seq) == (session["trajectory"], None)
    assert event.fact == FeedbackGiven(signal="stars", value=0.5, comment="good 漢字")


async def test_the_log_of_a_bug_has_no_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        session = await opened(gateway)
        with patch.object(Recorder, "record", side_effect=RuntimeError("a bug")):
            status, _ = await gateway.post(f"/feedback/{session['feedback_token']}", {"value": 1.0})
        assert status == 500
    assert "to /feedback/{token} failed" in caplog.text
    assert session["feedback_token"] not in caplog.text


async def test_a_burst_of_feedback(tmp_path: Path) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        path = f"/feedback/{(await opened(gateway))['feedback_token']}"
        found = [(await gateway.post(path, {"value": 1}))[0] for _ in range(int(FEEDBACK_BURST) + 10)]
        assert (found[0], found[-1]) == (202, 429)
        refused = (await gateway.post(path, {"value": 1}))[1]["error"]["message"]
        assert "too much feedback on one trajectory: 20 at once, then 1 per second" in refused
        assert gateway.headers["Access-Control-Allow-Origin"] == "*"
        assert int(gateway.headers["Retry-After"]) >= 1
        other = f"/feedback/{(await opened(gateway))['feedback_token']}"
        assert (await gateway.post(other, {"value": 1}))[0] == 202
    given = [each for each in recorded_in(tmp_path) if isinstance(each.fact, FeedbackGiven)]
    assert len(given) == found.count(202) + 1


async def test_refused_feedback_is_recorded_once_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        path = f"/feedback/{(await opened(gateway))['feedback_token']}"
        with monkeypatch.context() as full:
            full.setattr(Spool, "append", lambda *_, **__: [])
            assert (await gateway.post(path, {"value": 1}))[0] == 503
        assert (await gateway.post(path, {"value": 1}))[0] == 202
    assert len([each for each in recorded_in(tmp_path) if isinstance(each.fact, FeedbackGiven)]) == 1


async def test_the_last_request_of_a_session_says_so(tmp_path: Path) -> None:
    async with answering("One.", "Two.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway)
        await client.turn("a")
        client.headers = {"x-headrace-final": "1"}
        await client.turn("b")
        assert gateway.sessions == 0
    facts = [each.fact for each in recorded_in(tmp_path)]
    assert [type(each) for each in facts] == [TrajectoryStarted, ModelCalled, ModelCalled, TrajectoryEnded]


async def test_a_session_that_was_idle_during_a_restart_has_ended(tmp_path: Path) -> None:
    async with answering("One.", "Two.") as engine:
        async with running_gateway(tmp_path, [engine.url]) as gateway:
            client = ChatHttp(gateway)
            await client.turn("a")
            before = gateway.headers["x-headrace-trajectory"]
        await asyncio.sleep(0.05)  # a restart may take less than the idle time
        async with running_gateway(tmp_path, [engine.url], idle_s=0.01) as gateway:
            client.gateway = gateway
            await client.turn("b")
            assert gateway.headers["x-headrace-outcome"] == "resumed"
    events = recorded_in(tmp_path)
    ends = [each.trajectory_id for each in events if isinstance(each.fact, TrajectoryEnded)]
    assert ends == [before], "the assembler may have closed it"
    assert assert_exact(events) == 2


async def test_idle_sessions_end(tmp_path: Path) -> None:
    with patch.object(gateway_process, "SWEEP_S", 0.05):
        async with answering("One.") as engine, running_gateway(tmp_path, [engine.url], idle_s=0.3) as gateway:
            await ChatHttp(gateway).turn("a")
            await until(lambda: gateway.sessions == 0)
    assert isinstance(recorded_in(tmp_path)[-1].fact, TrajectoryEnded)


async def test_a_gateway_with_another_secret_accepts_nothing_of_this_one(tmp_path: Path) -> None:
    async with answering("fine") as engine:
        async with running_gateway(tmp_path / "a", [engine.url]) as gateway:
            session = await opened(gateway)
        async with running_gateway(tmp_path / "b", [engine.url]) as gateway:
            body = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
            assert (await gateway.post("/v1/chat/completions", body, key=session["api_key"]))[0] == 401
            assert (await gateway.post(f"/s/{session['session']}/v1/chat/completions", body))[0] == 403
            assert (await gateway.post("/sessions", {"session": session["session"]}))[0] == 403
            assert (await gateway.post(f"/feedback/{session['feedback_token']}", {"value": 1}))[0] == 403
        async with running_gateway(tmp_path / "a", [engine.url]) as gateway:
            assert (await gateway.post("/v1/chat/completions", body, key=session["api_key"]))[0] == 200


async def test_a_key_is_readable_and_holds_no_secret(tmp_path: Path) -> None:
    async with answering("fine") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        key = (await opened(gateway, task_id="t"))["api_key"].removeprefix("hrs_")
        readable = base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))[:-16]
        assert json.loads(readable)["request"] == {"task_id": "t"}
        assert (tmp_path / "secret").read_bytes() not in readable
        assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    await asyncio.sleep(0)


async def test_a_tenants_terms_decide_what_is_recorded(tmp_path: Path) -> None:
    terms: dict[str, dict[str, Any]] = {"rare": {"sample_rate": 1e-12}, "masked": {"masked": True}, "kept": {}}
    keys = [
        {"sha256": hashlib.sha256(name.encode()).hexdigest(), "tenant": name, **settings}
        for name, settings in terms.items()
    ]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    async with (
        answering("One.", "Two.") as engine,
        running_gateway(tmp_path / "gateway", [engine.url], keys=tmp_path / "keys.json") as gateway,
    ):
        for name in terms:
            client = ChatHttp(gateway, headers={"Authorization": f"Bearer {name}"})
            await client.turn("secret question")
            await client.turn("and more")
            known = len(engine.requests[-2]["token_ids"]) + len(engine.sampled[-2])
            assert engine.requests[-1]["token_ids"][:known] == engine.requests[-2]["token_ids"] + engine.sampled[-2]
    events = recorded_in(tmp_path / "gateway")
    tenants = {each.trajectory_id: each.fact.tenant for each in events if isinstance(each.fact, TrajectoryStarted)}
    assert sorted(tenants.values()) == ["kept", "masked"]
    for event in events:
        if isinstance(event.fact, ModelCalled):
            is_kept = tenants[event.trajectory_id] == "kept"
            assert (event.fact.sampled_ids is not None, event.fact.messages is not None) == (is_kept, is_kept)
            assert ("secret" in event.fact.model_dump_json()) <= is_kept


DEEP: Any = 0
for _ in range(100):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/sessions", {"task": {"a": DEEP}}, "task"),
        ("/sessions", {"session": "mine", "task": {"a": 10**400}}, "task"),
        ("end", {"outcome": 1e15}, "outcome"),
        ("end", {"answer": DEEP}, "answer"),
        ("end", {"answer": 10**310}, "answer"),
    ],
    ids=["deep task", "long number in a task", "outcome", "deep answer", "long number in an answer"],
)
async def test_what_no_event_can_hold_is_refused_and_changes_nothing(
    tmp_path: Path, path: str, body: dict[str, Any], param: str
) -> None:
    async with answering("Hi.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        status, session = await gateway.post("/sessions", {"session": "mine"} if path == "end" else {})
        assert status == 201
        url = f"/sessions/{session['session']}/end"
        status, answer = await gateway.post(url if path == "end" else path, body)
        assert (status, param in json.dumps(answer)) == (400, True)
        if path == "end":
            assert (await gateway.post(url, {"outcome": 1.0}))[0] == 200
        else:
            assert (await gateway.post(path, {"session": "mine"}))[0] == 201
    ends = [each for each in recorded_in(tmp_path) if isinstance(each.fact, TrajectoryEnded)]
    assert len(ends) == (1 if path == "end" else 0)


async def test_feedback_that_no_event_can_hold_is_refused(tmp_path: Path) -> None:
    async with answering("Hi.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        _, session = await gateway.post("/sessions", {})
        assert (await gateway.post(f"/feedback/{session['feedback_token']}", {"value": 1e38}))[0] == 400
        assert (await gateway.post(f"/feedback/{session['feedback_token']}", {"value": 1.0}))[0] == 202
