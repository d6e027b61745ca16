"""Two gateways with one secret at one address: what a session costs that the load balancer does not keep on one."""

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.schemas.events import FeedbackGiven
from tests.agents.gateway.http_clients import (
    CONVERSATIONS,
    ChatHttp,
    HttpClient,
    MessagesHttp,
    RecallingHttp,
    ResponsesHttp,
)
from tests.agents.gateway.running import RunningGateway, assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import ScriptedEngine, answering

TURNS = ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]


@asynccontextmanager
async def two_gateways(folder: Path, engine: ScriptedEngine) -> AsyncIterator[list[RunningGateway]]:
    async with running_gateway(folder / "a", [engine.url]) as first:
        (folder / "b").mkdir(mode=0o700)
        shutil.copy(folder / "a" / "secret", folder / "b" / "secret")
        async with running_gateway(folder / "b", [engine.url]) as second:
            yield [first, second]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", [ChatHttp, MessagesHttp, ResponsesHttp])
async def test_requests_in_turn_cost_segments_and_never_a_token(
    tmp_path: Path, kind: type[HttpClient], streams: bool
) -> None:
    async with answering(*TURNS) as engine:
        async with two_gateways(tmp_path, engine) as gateways:
            client = kind(gateways[0], streams=streams)
            for number, expected in enumerate(TURNS):
                client.gateway = gateways[number % 2]
                assert await client.turn(f"turn {number}") == expected
        ends = [engine.codec.encode(f"{text}<|im_end|>") for text in TURNS]
    events = [recorded_in(tmp_path / name) for name in ("a", "b")]
    # Each has a trajectory of its own, whose calls it knows; what the other sampled is a part of the prompt.
    trajectories = [{event.trajectory_id for event in each} for each in events]
    assert not trajectories[0] & trajectories[1]
    assert [len(calls_in(each)) for each in events] == [3, 3]
    assert all(assert_exact(each) >= 1 for each in events)
    sampled = Counter(tuple(call.sampled_ids or ()) for each in events for call in calls_in(each))
    assert sampled == Counter(tuple(each) for each in ends)


@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_a_session_that_stays_on_one_gateway_is_one_segment(tmp_path: Path, kind: type[HttpClient]) -> None:
    async with answering(*TURNS) as engine, two_gateways(tmp_path, engine) as gateways:
        clients = [kind(each, base=f"/s/{name}") for each, name in zip(gateways, "ab", strict=True)]
        for number in range(3):
            for client in clients:
                await client.turn(f"turn {number}")
    for name in "ab":
        events = recorded_in(tmp_path / name)
        assert (len({each.trajectory_id for each in events}), assert_exact(events)) == (1, 1)


async def test_a_sessions_key_and_feedback_token_count_at_either(tmp_path: Path) -> None:
    async with answering(*TURNS) as engine, two_gateways(tmp_path, engine) as (first, second):
        status, session = await first.post("/sessions", {"task_id": "issue-17"})
        assert status == 201
        client = ChatHttp(second, base="", headers={"Authorization": f"Bearer {session['api_key']}"})
        assert await client.turn("a") == "One."
        assert second.headers["x-headrace-session"] == session["session"]
        status, _ = await second.post(f"/feedback/{session['feedback_token']}", {"signal": "accepted", "value": 1})
        assert status == 202
    feedback = [each for each in recorded_in(tmp_path / "b") if isinstance(each.fact, FeedbackGiven)]
    assert [each.trajectory_id for each in feedback] == [session["trajectory"]]


async def test_calls_at_another_gateway_than_the_sessions_have_neither_its_group_nor_its_outcome(
    tmp_path: Path,
) -> None:
    question = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}
    async with answering(*TURNS) as engine, two_gateways(tmp_path, engine) as (first, second):
        _, session = await first.post("/sessions", {"task_id": "issue-17", "group_id": "g1"})
        status, _ = await second.post("/v1/chat/completions", question, key=session["api_key"])
        assert status == 200
        status, _ = await first.post(f"/sessions/{session['session']}/end", {"outcome": 1.0})
        assert status == 200
    (opened, ended), (started, called) = (recorded_in(tmp_path / name) for name in ("a", "b"))
    assert (opened.fact.group_id, ended.fact.outcome) == ("g1", 1.0)  # type: ignore[attr-defined]
    assert (started.fact.task_id, started.fact.group_id) == ("issue-17", None)  # type: ignore[attr-defined]
    assert called.trajectory_id == started.trajectory_id != opened.trajectory_id


async def test_a_stored_response_is_known_to_the_gateway_that_answered(tmp_path: Path) -> None:
    async with answering(*TURNS) as engine, two_gateways(tmp_path, engine) as (first, second):
        client = RecallingHttp(first)
        await client.turn("a")
        status, refused = await second.post(client.path, client.say("b").body())
        assert (status, refused["error"]["param"]) == (400, "previous_response_id"), refused
        assert "send the whole input instead" in refused["error"]["message"]
        assert (await client.ask()).texts == ("Two.",)
