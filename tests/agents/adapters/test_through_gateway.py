"""Wrapped clients through a whole gateway: one session, its sub-agent and its feedback, and nothing recorded twice."""

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from headrace.agents.adapters.gateway_session import OUTSIDE_SESSION
from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from headrace.schemas.events import ModelCalled, SubagentStarted, TrajectoryStarted
from tests.agents.gateway.running import assert_exact, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import answering

ASK: Any = {"role": "user", "content": "boots in 44?"}


async def test_a_session_has_its_calls_once(tmp_path: Path, headrace: Headrace, notes: list[Note]) -> None:
    async with (
        answering("We have both.", "Yes.", "Found.", "Hello.") as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        key: dict[str, Any] = {"api_key": "any", "max_retries": 0}
        chat = headrace.wrap(openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", **key))
        claude = headrace.wrap(anthropic.AsyncAnthropic(base_url=gateway.url, **key))
        with headrace.gateway_session("thread-7") as session:
            first = await chat.chat.completions.create(model="policy", messages=[ASK])
            history = [ASK, first.choices[0].message, {"role": "user", "content": "sure?"}]
            stream = await chat.chat.completions.create(model="policy", messages=history, stream=True)
            assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "Yes."
            with session.subagent("searcher", task_id="look"):
                look: Any = {"role": "user", "content": "Look for boots."}
                await chat.chat.completions.create(model="policy", messages=[look])
        with headrace.trajectory(task_id="t", agent="a"):  # through the gateway, but with no session's name
            await claude.messages.create(model="policy", max_tokens=99, messages=[{"role": "user", "content": "hi"}])
    session.feedback("accepted", 1.0)
    events = recorded_in(tmp_path)
    started = [each for each in events if type(each.fact) is TrajectoryStarted]
    assert isinstance(started[0].fact, TrajectoryStarted)
    assert started[0].fact.task_id == "thread-7"
    assert len([each for each in events if type(each.fact) is ModelCalled]) == 4
    assert [each.trajectory_id for each in events if type(each.fact) is SubagentStarted] == [session.trajectory_id]
    assert assert_exact(events) == 3
    assert [note.model.TYPE for note in notes] == [
        "headrace.trajectory.started.v1",
        "headrace.trajectory.ended.v1",
        "headrace.feedback.given.v1",
    ]
    assert notes[-1].trajectory_id == session.trajectory_id == started[0].trajectory_id


async def test_a_trajectory_around_calls_through_the_gateway_is_warned_of_once(
    tmp_path: Path, headrace: Headrace, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        answering("One.", "Two.", "Three.", "Four.") as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
        chat = headrace.wrap(client).chat.completions
        with headrace.gateway_session("thread-7") as session:
            await chat.create(model="policy", messages=[ASK])
            with session.subagent("searcher", task_id="look"):
                await chat.create(model="policy", messages=[ASK])
        headrace._sender.counters.wait_until_logged(10)
        assert OUTSIDE_SESSION not in caplog.messages
        for _ in range(2):
            with headrace.trajectory(task_id="order-17", agent="checkout"):
                await chat.create(model="policy", messages=[ASK])
        headrace._sender.counters.wait_until_logged(10)
    assert caplog.messages.count(OUTSIDE_SESSION) == 1
