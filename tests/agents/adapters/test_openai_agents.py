"""The OpenAI Agents SDK with the tracing processor, its own agent loop and a scripted model."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.adapters.scripted import Endpoint
from tests.agents.adapters.shop import (
    ANSWER,
    assert_failed,
    assert_two_tools,
    by_trajectory,
    chat_shop,
    fields_of,
    response_shop,
)
from tests.agents.sdk_helpers import kinds
from tests.beside import installed


@pytest.fixture(autouse=True)
def _sdk(headrace: Headrace, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the SDK behind headrace's own packages on the module path, with the processor as its only one."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(Path(__file__).parent / "openai-agents.txt"))])
    from agents.tracing import set_trace_processors

    from headrace.agents.adapters.openai_agents import HeadraceTracing

    processor = HeadraceTracing(headrace, agent="checkout")
    set_trace_processors([processor])
    yield
    set_trace_processors([])
    assert not processor._open
    assert headrace.stats.dropped == {}


WIRED = pytest.mark.parametrize("is_wrapped", [True, False], ids=["wrapped", "plain"])
APIS = pytest.mark.parametrize("api", ["chat", "responses"])


def model(headrace: Headrace, endpoint: Endpoint, api: str, is_wrapped: bool) -> Any:
    from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

    endpoint.model = chat_shop if api == "chat" else response_shop
    client = openai.AsyncOpenAI(base_url=endpoint.url, api_key="none", max_retries=0)
    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    return kind("gpt-5", headrace.wrap(client) if is_wrapped else client)


def agent(model: Any, *, is_strict: bool = True, **more: Any) -> Any:
    from agents import Agent, function_tool

    @function_tool(strict_mode=is_strict)  # type: ignore[untyped-decorator]
    def search(query: str) -> str:
        """Search the shop."""
        return f"boots {query}"

    # The SDK's own words for a failure do not say what went wrong.
    @function_tool(  # type: ignore[untyped-decorator]
        strict_mode=is_strict, failure_error_function=lambda context, error: str(error)
    )
    def stock(query: str) -> str:
        """Ask for the stock."""
        raise ConnectionError("no shop")

    return Agent(name="seller", instructions="You sell boots.", model=model, tools=[search, stock], **more)


async def answer_to(question: str, agent: Any, *, stream: bool = False, **more: Any) -> str:
    from agents import Runner

    if not stream:
        return str((await Runner.run(agent, question, **more)).final_output)
    result = Runner.run_streamed(agent, question, **more)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


@WIRED
@APIS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_two_runs_at_a_time_are_two_trajectories(
    stream: bool, api: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    from agents import RunConfig

    seller = agent(model(headrace, endpoint, api, is_wrapped))
    settings = [RunConfig(group_id=f"thread-{size}", trace_metadata={"task_id": f"order-{size}"}) for size in (44, 46)]
    runs = [
        answer_to(f"boots in {size}?", seller, stream=stream, run_config=each)
        for size, each in zip((44, 46), settings, strict=True)
    ]
    assert await asyncio.gather(*runs) == [f"{ANSWER} 44", f"{ANSWER} 46"]
    for size, own in zip(("44", "46"), by_trajectory(notes), strict=True):
        if not is_wrapped and api == "responses":  # the span has no instructions
            own[1].fields["messages"].insert(0, {"role": "system", "content": "You sell boots."})
        assert_two_tools(own, size)
        started = own[0].fields
        assert (started["task_id"], started["session"], started["agent"]) == (
            f"order-{size}",
            f"thread-{size}",
            "checkout",
        )


@WIRED
@APIS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_refused_call_ends_its_run(
    stream: bool, api: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    seller = agent(model(headrace, endpoint, api, is_wrapped))
    with pytest.raises(openai.BadRequestError):
        await answer_to("this fails", seller, stream=stream)
    assert_failed(notes)


class Stop(BaseException):
    """What a tool raises that no library handles."""


@WIRED
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("why", ["cancelled", "raised"])
async def test_a_tool_that_is_stopped_is_recorded_as_such(
    why: str, stream: bool, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    from agents import Agent, Runner, function_tool

    has_begun = asyncio.Event()

    @function_tool  # type: ignore[untyped-decorator]
    async def search(query: str) -> str:
        has_begun.set()
        if why == "raised":
            raise Stop
        await asyncio.sleep(60)
        return query

    seller = Agent(name="seller", model=model(headrace, endpoint, "chat", is_wrapped), tools=[search])
    if stream:
        result = Runner.run_streamed(seller, "boots in 44?")
        running = result.run_loop_task
        stop: Any = result.cancel
    else:
        running = asyncio.create_task(Runner.run(seller, "boots in 44?"))
        stop = running.cancel
    await has_begun.wait()
    if why == "cancelled":
        stop()
    assert running is not None
    await asyncio.wait([running])
    assert running.cancelled() or isinstance(running.exception(), Stop)
    await asyncio.sleep(0.01)  # the tool's own task is cancelled after the run's
    assert kinds(notes) == ["trajectory.started", "model.called", "tool.called", "tool.returned", "trajectory.ended"]
    assert (notes[3].fields["status"], notes[3].fields["error_class"]) == ("error", "aborted")
    assert notes[4].fields["status"] == "aborted"


@WIRED
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_run_that_uses_up_its_turns(
    stream: bool, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    from agents import MaxTurnsExceeded

    with pytest.raises(MaxTurnsExceeded):
        await answer_to(
            "boots in 44?", agent(model(headrace, endpoint, "chat", is_wrapped)), stream=stream, max_turns=1
        )
    assert kinds(notes) == ["trajectory.started", "model.called", "tool.called", "tool.returned", "trajectory.ended"]
    assert notes[-1].fields["status"] == "turns_exhausted"


async def test_a_sub_agent_that_uses_up_its_turns(headrace: Headrace, endpoint: Endpoint, notes: list[Note]) -> None:
    from agents import Agent

    shared = model(headrace, endpoint, "chat", is_wrapped=True)
    helper = agent(shared).as_tool("ask_helper", "Ask for sizes.", max_turns=1)
    asker = Agent(name="asker", instructions="Ask.", model=shared, tools=[helper])
    assert await answer_to("boots in 44?", asker) == f"{ANSWER} 44"
    main, sub = by_trajectory(notes)
    assert (main[-1].fields["status"], sub[-1].fields["status"]) == ("completed", "turns_exhausted")
    assert fields_of(main, "subagent.finished")[0]["status"] in ("turns_exhausted", "failed")


@WIRED
@APIS
async def test_an_agent_as_a_tool_is_a_sub_agent_and_a_handoff_continues(
    api: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    from agents import Agent

    shared = model(headrace, endpoint, api, is_wrapped)
    helper = Agent(name="helper", instructions="You know sizes.", model=shared)
    closer = Agent(name="closer", instructions="You close.", model=shared)
    asker = Agent(name="asker", model=shared, tools=[helper.as_tool("ask_helper", "Ask for sizes.")], handoffs=[closer])
    assert await answer_to("boots in 44?", asker) == f"{ANSWER} 44"
    main, sub = by_trajectory(notes)
    assert kinds(main) == [
        *("trajectory.started", "model.called", "tool.called", "subagent.started", "subagent.finished"),
        *("tool.returned", "model.called", "tool.called", "tool.returned", "model.called", "trajectory.ended"),
    ]
    assert kinds(sub) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert sub[0].fields["parent_trajectory_id"] == main[0].trajectory_id
    assert (sub[0].fields["agent"], sub[-1].fields["answer"]) == ("helper", f"{ANSWER} 44")
    assert [each["tool"] for each in fields_of(main, "tool.called")] == ["ask_helper", "transfer_to_closer"]
    assert fields_of(main, "tool.returned")[1]["result"] == json.dumps({"assistant": "closer"})


@WIRED
async def test_a_run_inside_a_trajectory_belongs_to_it_and_a_session_sends_nothing(
    is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    seller = agent(model(headrace, endpoint, "responses", is_wrapped))
    with headrace.gateway_session("thread-7"):
        await answer_to("boots in 44?", seller)
    assert notes == []
    named = {headers.get("x-session-id") for headers, _ in endpoint.requests}
    assert named == ({"thread-7"} if is_wrapped else {None})
    with headrace.trajectory(task_id="order-17", agent="shop"):
        await answer_to("boots in 44?", seller)
    assert len(by_trajectory(notes)) == 1
    assert (notes[0].fields["task_id"], len(fields_of(notes, "model.called"))) == ("order-17", 3)


async def test_a_recording_that_fails_does_not_reach_the_run(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.agents.adapters import openai_agents

    monkeypatch.setattr(openai_agents, "read_request", None)
    seller = agent(model(headrace, endpoint, "responses", is_wrapped=False))
    assert await answer_to("boots in 44?", seller) == f"{ANSWER} 44"
    assert headrace.stats.dropped == {"internal": 3}
    headrace._sender.counters = type(headrace._sender.counters)()
