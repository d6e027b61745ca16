"""Wrapped sessions and clients of MCP with a real server."""

import asyncio
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer

from headrace.agents.adapters.recorder import IN_TOOL
from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.adapters.shop import by_trajectory, fields_of
from tests.agents.sdk_helpers import kinds

CALL = ["tool.called", "tool.returned"]


@pytest.fixture
def shop() -> MCPServer:
    server = MCPServer("shop")

    @server.tool()
    def search(query: str) -> dict[str, str]:
        """Search the shop."""
        return {"found": f"boots {query}"}

    @server.tool(structured_output=False)
    def greet() -> str:
        """Say hello."""
        return "hello"

    @server.tool()
    def stock() -> str:
        """Ask for the stock."""
        raise ConnectionError("no shop")

    @server.tool()
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(60)
        return "done"

    return server


@pytest.mark.parametrize("is_session", [False, True], ids=["client", "session"])
async def test_tool_calls_are_those_of_the_trajectory_around_them(
    is_session: bool, shop: MCPServer, headrace: Headrace, notes: list[Note]
) -> None:
    async with Client(shop) as client:
        plain = await client.call_tool("search", {"query": "44"}), await client.call_tool("stock")
        tools: Any = headrace.wrap(client.session if is_session else client)
        assert headrace.wrap(tools) is tools

        async def run(size: str) -> None:
            async with headrace.trajectory(task_id=f"order-{size}", agent="checkout"):
                for name, arguments in (("search", {"query": size}), ("greet", None), ("stock", None)):
                    answered = await tools.call_tool(name, arguments)
                    if size == "44" and name != "greet":
                        assert answered == plain[name == "stock"]
                with pytest.raises(MCPError):
                    await tools.call_tool("wait", read_timeout_seconds=0.05)

        await asyncio.gather(run("44"), run("46"))
    for size, own in zip(("44", "46"), by_trajectory(notes), strict=True):
        assert kinds(own) == ["trajectory.started", *CALL * 4, "trajectory.ended"]
        called = fields_of(own, "tool.called")
        assert [(each["tool"], each["arguments"]) for each in called] == [
            ("search", {"query": size}),
            ("greet", {}),
            ("stock", {}),
            ("wait", {}),
        ]
        found, greeted, failed, timed_out = fields_of(own, "tool.returned")
        assert (found["status"], found["result"]) == ("ok", {"found": f"boots {size}"})
        assert greeted["result"] == "hello"
        assert (failed["status"], failed["error_class"]) == ("error", "environment")
        assert "stock" in failed["result"]  # the server hides the reason
        assert (timed_out["status"], timed_out["error_class"]) == ("error", "timeout")
    assert headrace.stats.dropped == {}


async def test_an_unknown_session_and_a_gateway_s(shop: MCPServer, headrace: Headrace, notes: list[Note]) -> None:
    async with Client(shop) as client:
        headrace.wrap(client)
        with headrace.gateway_session("thread-7"):
            await client.call_tool("search", {"query": "44"})
        assert (notes, headrace.stats.dropped) == ([], {})
        await client.call_tool("search", {"query": "44"})
        assert (notes, headrace.stats.dropped) == ([], {"no_trajectory": 2})


async def test_what_another_adapter_records_is_recorded_once(
    shop: MCPServer, headrace: Headrace, notes: list[Note]
) -> None:
    async with Client(shop) as client, headrace.trajectory(task_id="order-17", agent="checkout"):
        headrace.wrap(client)
        inside = IN_TOOL.set(True)
        await client.call_tool("search", {"query": "44"})
        IN_TOOL.reset(inside)
    assert kinds(notes) == ["trajectory.started", "trajectory.ended"]


async def test_a_result_that_cannot_be_read_reaches_the_caller(headrace: Headrace, notes: list[Note]) -> None:
    class Session:
        async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
            return 7

    async with headrace.trajectory(task_id="order-17", agent="checkout"):
        assert await headrace.wrap(Session()).call_tool("search") == 7
    assert kinds(notes) == ["trajectory.started", *CALL, "trajectory.ended"]
    assert headrace.stats.dropped == {"internal": 1}


async def test_an_error_that_cannot_be_read_reaches_the_caller(headrace: Headrace, notes: list[Note]) -> None:
    class Failure(Exception):
        @property
        def error(self) -> Any:
            raise RuntimeError("not now")

    class Session:
        async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
            raise Failure

    async with headrace.trajectory(task_id="order-17", agent="checkout"):
        with pytest.raises(Failure):
            await headrace.wrap(Session()).call_tool("search")
    assert kinds(notes) == ["trajectory.started", *CALL, "trajectory.ended"]
    assert fields_of(notes, "tool.returned")[0]["error_class"] == "environment"
    assert headrace.stats.dropped == {"internal": 1}
