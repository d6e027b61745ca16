"""The tools of the Responses API that are no functions, with the real Codex: custom tools and namespaces."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.events import ToolCalled, ToolReturned
from tests.agents.gateway.clients.gateway_process import Launcher, running_process
from tests.agents.gateway.clients.programs import DONE, codex, run_program
from tests.agents.gateway.clients.relay import Relay
from tests.agents.gateway.clients.runs import assert_complete, assert_exact_and_once
from tests.agents.gateway.clients.script import PlayedModel
from tests.conftest import Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm]

LIMIT_S = 180.0
"""Longest run; only detects that it hangs."""

PATCH = '*** Begin Patch\n*** Add File: greeting.txt\n+hello "world" \\ naïve\n*** End Patch\n'


@dataclass(frozen=True)
class Tool:
    """A tool of Codex that is no function."""

    model: str
    """Name of a model with which Codex has it."""
    call: dict[str, Any]
    """As the model writes it."""
    item: dict[str, Any]
    """The item that Codex receives and sends back, as far as it is known."""
    events: Counter[str]
    """Types of the stream's events about it."""
    says: str
    """What the tool answers, in part."""


TOOLS = {
    "custom": Tool(
        # One of the models that Codex knows; it patches files by a custom tool with a grammar.
        "gpt-5.5",
        {"name": "apply_patch", "arguments": {"input": PATCH}},
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH},
        Counter({"response.custom_tool_call_input.done": 1}),
        "A greeting.txt",
    ),
    "namespace": Tool(
        "policy",
        {"name": "multi_agent_v1__close_agent", "arguments": {"target": "019a0000-0000-7000-8000-000000000000"}},
        {"type": "function_call", "name": "close_agent", "namespace": "multi_agent_v1"},
        Counter({"response.function_call_arguments.done": 1}),
        "agent",
    ),
}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
async def test_codex_receives_its_own_tools_and_continues_exactly(
    tool: Tool, long_render_server: Engine, launcher: Launcher, tmp_path: Path
) -> None:
    model_dir = long_render_server.model_dir
    call = f"<tool_call>\n{json.dumps(tool.call)}\n</tool_call>"
    model = PlayedModel((f"I use it.\n{call}", call, DONE), model_dir, long_render_server.url)
    async with (
        model,
        running_process(tmp_path / "gateway", model.url, launcher) as gateway,
        Relay(gateway.url) as relay,
    ):
        ended = await run_program(codex(relay.url, tool.model), tmp_path / "home", LIMIT_S)
    context = f"{ended.output}\n{gateway.log()}"
    assert ended.status == 0, context
    assert DONE in ended.output
    answered = [each for each in relay.exchanges if each.outcome is not None]
    assert [each.outcome for each in answered] == ["new_trajectory", "continuation", "continuation"], context

    received = answered[0].events()
    (done,) = (
        each["item"] for each in received if each["type"] == "response.output_item.done" and "call_id" in each["item"]
    )
    assert {name: done[name] for name in tool.item} == tool.item
    types = Counter(str(each["type"]) for each in received)
    assert {name: types[name] for name in tool.events} == tool.events
    for delta, whole in (("custom_tool_call_input.delta", "input"), ("function_call_arguments.delta", "arguments")):
        if whole in done:
            assert "".join(each["delta"] for each in received if each["type"] == f"response.{delta}") == done[whole]
    sent = [each for each in answered[-1].asked()["input"] if "call_id" in each and not each["type"].endswith("output")]
    assert len(sent) == 2
    assert {name: sent[0][name] for name in tool.item} == tool.item

    events = gateway.recorded()
    calls = assert_exact_and_once(
        events, {name: (each.prompt_ids, each.answer_ids) for name, each in model.played.items()}
    )
    assert assert_complete(relay.exchanges, calls) == len(calls) == 3
    assert sum(each.starts_segment for each in calls) == 1
    called = [each.fact for each in events if isinstance(each.fact, ToolCalled)]
    returned = [each.fact for each in events if isinstance(each.fact, ToolReturned)]
    assert [(each.tool, each.arguments) for each in called] == [(tool.call["name"], tool.call["arguments"])] * 2
    assert [each.call_id for each in called] == [each.call_id for each in returned]
    assert tool.says in str(returned[0].result)
