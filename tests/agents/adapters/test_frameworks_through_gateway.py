"""Agents of other libraries through a whole gateway, with vLLM's templates and parsers and a scripted engine: one
trajectory with its tool calls in place, whose calls can be trained, and nothing from the adapter but feedback."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from headrace.schemas.events import (
    ModelCalled,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    TrajectoryStarted,
)
from tests.agents.adapters.test_openai_agents import answer_to
from tests.agents.gateway.running import Recorded, RunningGateway, assert_exact, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import FileCodec, Reply, ScriptedEngine
from tests.beside import installed
from tests.conftest import Engine

pytestmark = pytest.mark.vllm

END = 2
"""The tiny model's end token."""
HERE = Path(__file__).parent


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


RUN = (call("search", query="44"), call("stock", query="44"), "We have both.")


@asynccontextmanager
async def answering(folder: Path, render: Engine, *texts: str) -> AsyncIterator[RunningGateway]:
    """A gateway whose engine samples ``texts``."""
    replies = [Reply(text, ends_with=(END,)) for text in texts]
    parsers = {"tool_parser": "hermes", "model_path": str(render.model_dir)}
    async with (
        ScriptedEngine(replies, codec=FileCodec(render.model_dir), upstream=render.url) as engine,
        running_gateway(folder, [engine.url], model_aliases={"*": "policy"}, **parsers) as gateway,
    ):
        yield gateway


def assert_one_trajectory(events: list[Recorded]) -> str:
    """One exact segment with both tool calls in place; returns the trajectory's id."""
    assert len({each.trajectory_id for each in events}) == 1
    turn = [ModelCalled, ToolCalled, ToolReturned]
    assert [type(each.fact) for each in events] == [TrajectoryStarted, *turn, *turn, ModelCalled]
    assert isinstance(events[0].fact, TrajectoryStarted)
    assert events[0].fact.task_id == "thread-7"
    assert assert_exact(events) == 1
    tools = [each.fact for each in events if isinstance(each.fact, (ToolCalled, ToolReturned))]
    assert [each.tool for each in tools] == ["search", "search", "stock", "stock"]
    searched = tools[1]
    assert isinstance(searched, ToolReturned)
    assert "boots 44" in str(searched.result)
    return events[0].trajectory_id


@pytest.fixture
def agents(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The OpenAI Agents SDK with the processor."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(HERE / "openai-agents.txt"))])
    from agents.tracing import set_trace_processors

    from headrace.agents.adapters.openai_agents import HeadraceTracing

    set_trace_processors([HeadraceTracing(headrace)])


@pytest.mark.usefixtures("agents")
async def test_an_agent_as_a_tool_is_a_sub_agent_of_the_session(
    tmp_path: Path, render_server: Engine, headrace: Headrace, notes: list[Note]
) -> None:
    from agents import Agent, OpenAIChatCompletionsModel

    texts = call("ask_helper", input="44?"), "It is 44.", "We have both."
    async with answering(tmp_path, render_server, *texts) as gateway:
        client = headrace.wrap(openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any"))
        model = OpenAIChatCompletionsModel("policy", client)
        helper = Agent(name="helper", instructions="You know sizes.", model=model)
        asker = Agent(name="asker", model=model, tools=[helper.as_tool("ask_helper", "Ask for sizes.")])
        with headrace.gateway_session("thread-7"):
            assert (await answer_to("boots in 44?", asker)).strip() == "We have both."
    events = recorded_in(tmp_path)
    main = events[0].trajectory_id
    own = [type(each.fact) for each in events if each.trajectory_id == main]
    assert own.count(ModelCalled) == 2
    assert {ToolCalled, ToolReturned, SubagentStarted} <= set(own) | {SubagentFinished}
    subs = {each.trajectory_id for each in events} - {main}
    assert len(subs) == 1
    assert_exact(events)
    assert notes == []


async def test_mcp(tmp_path: Path, render_server: Engine, headrace: Headrace, notes: list[Note]) -> None:
    server = MCPServer("shop")

    @server.tool()
    def search(query: str) -> str:
        """Search the shop."""
        return f"boots {query}"

    @server.tool()
    def stock(query: str) -> str:
        """Ask for the stock."""
        raise ConnectionError("no shop")

    messages: list[Any] = [{"role": "user", "content": "boots in 44?"}]
    async with answering(tmp_path, render_server, *RUN) as gateway, Client(server) as tools:
        model = headrace.wrap(openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any"))
        headrace.wrap(tools)
        offered: Any = [
            {"type": "function", "function": {"name": each.name, "parameters": each.input_schema}}
            for each in (await tools.list_tools()).tools
        ]
        with headrace.gateway_session("thread-7"):
            while True:
                answer = await model.chat.completions.create(model="policy", messages=messages, tools=offered)
                said = answer.choices[0].message
                messages.append(said)
                if not said.tool_calls:
                    break
                for each in said.tool_calls:
                    assert each.type == "function"
                    result = await tools.call_tool(each.function.name, json.loads(each.function.arguments))
                    text = "".join(getattr(block, "text", "") for block in result.content)
                    messages.append({"role": "tool", "tool_call_id": each.id, "content": text})
    assert_one_trajectory(recorded_in(tmp_path))
    assert notes == []
