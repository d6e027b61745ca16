"""Pydantic AI with the capability, its own agent loop and a scripted model."""

import asyncio
import sys
import tomllib
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
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the library behind headrace's own packages on the module path."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(Path(__file__).parent / "pydantic-ai.txt"))])


WIRED = pytest.mark.parametrize("is_wrapped", [True, False], ids=["wrapped", "plain"])
APIS = pytest.mark.parametrize("api", ["chat", "responses"])


def test_the_extra_has_what_the_example_imports() -> None:
    """The library itself imports no client of a model."""
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    (extra,) = settings["project"]["optional-dependencies"]["pydantic-ai"]
    assert extra.startswith("pydantic-ai-slim[openai]")


def model(headrace: Headrace, endpoint: Endpoint, api: str, is_wrapped: bool) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    endpoint.model = chat_shop if api == "chat" else response_shop
    client = openai.AsyncOpenAI(base_url=endpoint.url, api_key="none", max_retries=0)
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind("gpt-5", provider=OpenAIProvider(openai_client=headrace.wrap(client) if is_wrapped else client))


def agent(
    headrace: Headrace, model: Any, *, name: str = "seller", tools: bool = True, is_strict: bool | None = None
) -> Any:
    from pydantic_ai import Agent, ModelRetry

    from headrace.agents.adapters.pydantic_ai import HeadraceRecording

    recording = HeadraceRecording(headrace, agent="checkout")
    found: Any = Agent(model, name=name, instructions="You sell boots.", capabilities=[recording])

    def search(query: str) -> str:
        """Search the shop."""
        return f"boots {query}"

    def stock(query: str) -> str:
        """Ask for the stock."""
        raise ModelRetry("no shop")

    if tools:
        found.tool_plain(search, strict=is_strict)
        found.tool_plain(stock, strict=is_strict)
    return found


async def answer_to(question: str, agent: Any, *, stream: bool = False, **more: Any) -> str:
    if not stream:
        return str((await agent.run(question, **more)).output)
    async with agent.run_stream(question, **more) as result:
        return "".join([text async for text in result.stream_text(delta=True)])


@WIRED
@APIS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_two_runs_at_a_time_are_two_trajectories(
    stream: bool, api: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    seller = agent(headrace, model(headrace, endpoint, api, is_wrapped))
    runs = [
        answer_to(
            f"boots in {size}?",
            seller,
            stream=stream,
            conversation_id=f"thread-{size}",
            metadata={"task_id": f"order-{size}"},
        )
        for size in (44, 46)
    ]
    assert await asyncio.gather(*runs) == [f"{ANSWER} 44", f"{ANSWER} 46"]
    for size, own in zip(("44", "46"), by_trajectory(notes), strict=True):
        assert_two_tools(own, size)
        started = own[0].fields
        assert (started["task_id"], started["session"]) == (f"order-{size}", f"thread-{size}")
    assert headrace.stats.dropped == {}


@WIRED
@APIS
async def test_a_refused_call_ends_its_run(
    api: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    from pydantic_ai import ModelHTTPError

    with pytest.raises(ModelHTTPError):
        await answer_to("this fails", agent(headrace, model(headrace, endpoint, api, is_wrapped)))
    assert_failed(notes)
    assert headrace.stats.dropped == {}


@WIRED
async def test_a_tool_that_is_cancelled_ends_with_its_run(
    is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    seller, has_begun = agent(headrace, model(headrace, endpoint, "chat", is_wrapped), tools=False), asyncio.Event()

    @seller.tool_plain  # type: ignore[untyped-decorator]
    async def search(query: str) -> None:
        has_begun.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(answer_to("boots in 44?", seller))
    await has_begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert kinds(notes) == ["trajectory.started", "model.called", "tool.called", "tool.returned", "trajectory.ended"]
    assert (notes[3].fields["status"], notes[3].fields["error_class"]) == ("error", "aborted")
    assert notes[4].fields["status"] == "aborted"
    assert headrace.stats.dropped == {}


@WIRED
@APIS
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["left", "cancelled"])
async def test_a_stream_that_is_not_read_to_its_end_is_recorded_as_far_as_it_was(
    is_cancelled: bool, api: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    seller = agent(headrace, model(headrace, endpoint, api, is_wrapped), tools=False)
    has_begun = asyncio.Event()

    async def read() -> None:
        async with seller.run_stream("boots in 44?") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                has_begun.set()
                if not is_cancelled:
                    break
                await asyncio.sleep(60)

    running = asyncio.create_task(read())
    await has_begun.wait()
    if is_cancelled:
        running.cancel()
    await asyncio.wait([running])
    assert running.cancelled() == is_cancelled
    (called,) = fields_of(notes, "model.called")
    said = called["messages"][-1]
    assert said["role"] == "assistant"
    assert f"{ANSWER} 44".startswith(said["content"])
    assert said["content"]
    assert called["delivered"] is False
    assert kinds(notes)[-1] == "trajectory.ended"
    assert notes[-1].fields["status"] == "aborted", "the library cancels a run whose stream is left without a result"
    assert headrace.stats.dropped == {}


@WIRED
@pytest.mark.parametrize("why", ["ApprovalRequired", "CallDeferred"])
async def test_a_tool_that_waits_for_a_person_has_not_failed(
    why: str, is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    from pydantic_ai import DeferredToolRequests, exceptions

    seller = agent(headrace, model(headrace, endpoint, "chat", is_wrapped), tools=False)

    @seller.tool_plain  # type: ignore[untyped-decorator]
    async def search(query: str) -> None:
        raise getattr(exceptions, why)

    result = await seller.run("boots in 44?", output_type=[str, DeferredToolRequests])
    assert isinstance(result.output, DeferredToolRequests)
    assert kinds(notes) == ["trajectory.started", "model.called", "tool.called", "tool.returned", "trajectory.ended"]
    returned, ended = notes[3].fields, notes[4].fields
    assert (returned["status"], returned["error_class"], returned["result"]) == ("error", "aborted", why)
    assert ended["status"] == "completed"


@WIRED
async def test_a_run_inside_a_tool_is_a_sub_agent(
    is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    shared = model(headrace, endpoint, "chat", is_wrapped)
    helper = agent(headrace, shared, name="helper", tools=False)
    asker = agent(headrace, shared, name="asker", tools=False)

    @asker.tool_plain  # type: ignore[untyped-decorator]
    async def ask_helper(input: str) -> str:
        """Ask for sizes."""
        return str((await helper.run(input)).output)

    assert await answer_to("boots in 44?", asker) == f"{ANSWER} 44"
    main, sub = by_trajectory(notes)
    assert kinds(main) == [
        *("trajectory.started", "model.called", "tool.called", "subagent.started", "subagent.finished"),
        *("tool.returned", "model.called", "trajectory.ended"),
    ]
    assert kinds(sub) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert sub[0].fields["parent_trajectory_id"] == main[0].trajectory_id
    assert (sub[0].fields["agent"], sub[-1].fields["answer"]) == ("helper", f"{ANSWER} 44")
    assert headrace.stats.dropped == {}


@WIRED
async def test_a_run_inside_a_trajectory_belongs_to_it_and_a_session_sends_nothing(
    is_wrapped: bool, headrace: Headrace, endpoint: Endpoint, notes: list[Note]
) -> None:
    seller = agent(headrace, model(headrace, endpoint, "chat", is_wrapped))
    with headrace.gateway_session("thread-7"):
        await answer_to("boots in 44?", seller)
    assert notes == []
    assert {headers.get("x-session-id") for headers, _ in endpoint.requests} == {"thread-7" if is_wrapped else None}
    with headrace.trajectory(task_id="order-17", agent="shop"):
        await answer_to("boots in 44?", seller)
    assert len(by_trajectory(notes)) == 1
    assert (notes[0].fields["task_id"], len(fields_of(notes, "model.called"))) == ("order-17", 3)
    assert headrace.stats.dropped == {}


async def test_a_recording_that_fails_does_not_reach_the_run(
    headrace: Headrace, endpoint: Endpoint, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.agents.adapters import pydantic_ai

    seller = agent(headrace, model(headrace, endpoint, "chat", is_wrapped=False))
    for broken, count in (("read_request", 3), ("begin_run", 1)):
        monkeypatch.setattr(pydantic_ai, broken, None)
        before = headrace.stats.dropped.get("internal", 0)
        assert await answer_to("boots in 44?", seller) == f"{ANSWER} 44"
        assert headrace.stats.dropped == {"internal": before + count}
