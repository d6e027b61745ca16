"""Agents of other libraries through a whole gateway, with vLLM's templates and parsers and a scripted engine: one
trajectory with its tool calls in place, whose calls can be trained, and nothing from the adapter but feedback."""

import asyncio
import json
import os
import re
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
    Role,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    TrajectoryStarted,
)
from tests.agents.adapters import test_openai_agents as of_agents
from tests.agents.adapters import test_pydantic_ai as of_pydantic
from tests.agents.adapters.test_openai_agents import answer_to
from tests.agents.gateway.running import Recorded, RunningGateway, assert_exact, calls_in, recorded_in, running_gateway
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


def assert_one_trajectory(events: list[Recorded], task_id: str = "thread-7") -> str:
    """One exact segment with both tool calls in place; returns the trajectory's id."""
    assert len({each.trajectory_id for each in events}) == 1
    turn = [ModelCalled, ToolCalled, ToolReturned]
    assert [type(each.fact) for each in events] == [TrajectoryStarted, *turn, *turn, ModelCalled]
    assert isinstance(events[0].fact, TrajectoryStarted)
    assert (events[0].fact.task_id, events[0].fact.role) == (task_id, Role.TRAINABLE)
    assert assert_exact(events) == 1
    tools = [each.fact for each in events if isinstance(each.fact, (ToolCalled, ToolReturned))]
    assert [each.tool for each in tools] == ["search", "search", "stock", "stock"]
    searched = tools[1]
    assert isinstance(searched, ToolReturned)
    assert re.search(r"boots .*44", str(searched.result))
    return events[0].trajectory_id


def assert_all_in_one(events: list[Recorded], notes: list[Note], *, is_strict: bool) -> None:
    """The gateway's one trajectory, and the adapter's feedback on it. ``is_strict``: whether the tools are strict; vLLM
    enforces that, and tokens that were sampled so are not trained."""
    trajectory = assert_one_trajectory(events)
    assert {tuple(each.sampling.altered_by) for each in calls_in(events)} == {STRICT if is_strict else ()}
    assert [(note.model.TYPE, note.trajectory_id) for note in notes] == [("headrace.feedback.given.v1", trajectory)]


@pytest.fixture
def agents(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The OpenAI Agents SDK with the processor."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(HERE / "openai-agents.txt"))])
    from agents.tracing import set_trace_processors

    from headrace.agents.adapters.openai_agents import HeadraceTracing

    set_trace_processors([HeadraceTracing(headrace)])


STRICT = ("structured_output",)
"""What changes the distribution where tools are strict."""
TOOLS = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "loose"])
APIS = pytest.mark.parametrize("api", ["chat", "responses"])
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.mark.usefixtures("agents")
@TOOLS
@APIS
@STREAMS
async def test_the_openai_agents_sdk(
    stream: bool,
    api: str,
    is_strict: bool,
    tmp_path: Path,
    render_server: Engine,
    headrace: Headrace,
    notes: list[Note],
) -> None:
    from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    async with answering(tmp_path, render_server, *RUN) as gateway:
        client = headrace.wrap(openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any"))
        seller = of_agents.agent(kind("policy", client), is_strict=is_strict)
        with headrace.gateway_session("thread-7") as session:
            assert (await of_agents.answer_to("boots in 44?", seller, stream=stream)).strip() == "We have both."
    session.feedback("accepted", 1.0)
    assert_all_in_one(recorded_in(tmp_path), notes, is_strict=is_strict)


@TOOLS
@APIS
@STREAMS
async def test_pydantic_ai(
    stream: bool,
    api: str,
    is_strict: bool,
    tmp_path: Path,
    render_server: Engine,
    headrace: Headrace,
    notes: list[Note],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(HERE / "pydantic-ai.txt"))])
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    async with answering(tmp_path, render_server, *RUN) as gateway:
        client = headrace.wrap(openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any"))
        model = kind("policy", provider=OpenAIProvider(openai_client=client))
        seller = of_pydantic.agent(headrace, model, is_strict=None if is_strict else False)
        with headrace.gateway_session("thread-7") as session:
            assert (await of_pydantic.answer_to("boots in 44?", seller, stream=stream)).strip() == "We have both."
    session.feedback("accepted", 1.0)
    assert_all_in_one(recorded_in(tmp_path), notes, is_strict=is_strict)


@pytest.mark.filterwarnings("ignore")
@APIS
@STREAMS
async def test_langchain(
    stream: bool,
    api: str,
    tmp_path: Path,
    render_server: Engine,
    headrace: Headrace,
    notes: list[Note],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(HERE.parents[1] / "langchain.txt"))])
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    from headrace.agents.adapters.langchain import HeadraceCallbacks

    @tool  # type: ignore[untyped-decorator]
    def search(query: str) -> str:
        """Search the shop."""
        return f"boots {query}"

    @tool  # type: ignore[untyped-decorator]
    def stock(query: str) -> str:
        """Ask for the stock."""
        return f"2 of {query}"

    async with answering(tmp_path, render_server, *RUN) as gateway:
        _, opened = await gateway.post("/sessions", {"task_id": "thread-7"})
        named = {"base_url": f"{gateway.url}/v1", "default_headers": {"x-session-id": opened["session"]}}
        model = ChatOpenAI(
            model="policy", api_key="any", use_responses_api=api == "responses", streaming=stream, **named
        )
        seller = create_react_agent(model, [search, stock])
        config: Any = {"callbacks": [HeadraceCallbacks(headrace, agent="checkout")]}
        question = {"messages": [("user", "boots in 44?")]}
        with headrace.gateway_session(opened["session"], trajectory_id=opened["trajectory"]) as session:
            if stream:
                states = [state async for state in seller.astream(question, config=config, stream_mode="values")]
                result = states[-1]
            else:
                result = await seller.ainvoke(question, config=config)
            assert result["messages"][-1].text.strip() == "We have both."
    session.feedback("accepted", 1.0)
    assert_all_in_one(recorded_in(tmp_path), notes, is_strict=False)


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
    own = [each.fact for each in events if each.trajectory_id == main]
    assert [type(each) for each in own if type(each) is not SubagentFinished] == [
        *(TrajectoryStarted, ModelCalled, ToolCalled, SubagentStarted, ToolReturned, ModelCalled),
    ]
    assert [str(each.result).strip() for each in own if isinstance(each, ToolReturned)] == ["It is 44."]
    (sub,) = {each.trajectory_id for each in events} - {main}
    assert [type(each.fact) for each in events if each.trajectory_id == sub][:2] == [TrajectoryStarted, ModelCalled]
    assert assert_exact(events) == 2
    assert notes == []


async def test_litellm(tmp_path: Path, render_server: Engine) -> None:
    """In a process of its own: it needs another version of OpenAI's client."""
    reports = tmp_path / "reports"
    reports.mkdir()
    async with answering(tmp_path / "gateway", render_server, *RUN * 3) as gateway:
        path = os.pathsep.join([str(installed(HERE / "litellm.txt")), *sys.path])
        env = {"PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        env |= {"GATEWAY": gateway.url, "REPORTS": str(reports)}
        options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / "litellm_through_gateway.py"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", *options),
            cwd=HERE.parents[2],
            env=os.environ | env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(300):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, output.decode()[-4_000:]
    events = recorded_in(tmp_path / "gateway")
    started = {each.fact.task_id: each.trajectory_id for each in events if isinstance(each.fact, TrajectoryStarted)}
    assert {each.name: each.read_text() for each in reports.iterdir()} == started
    assert started.keys() == {"whole", "stream", "synchronous"}
    for task_id, trajectory in started.items():
        own = [each for each in events if each.trajectory_id == trajectory]
        assert assert_one_trajectory(own, task_id) == trajectory
        assert {tuple(each.sampling.altered_by) for each in calls_in(own)} == {()}


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
    events = recorded_in(tmp_path)
    assert_one_trajectory(events)
    assert {tuple(each.sampling.altered_by) for each in calls_in(events)} == {()}
    assert notes == []
