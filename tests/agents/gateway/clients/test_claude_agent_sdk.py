"""The Claude Agent SDK with the real Claude Code: against a scripted endpoint of Anthropic's API, and through the
gateway, where the adapter sends nothing but feedback."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from headrace.agents.spool_folder import STATE_VARIABLE
from headrace.schemas.events import (
    ModelCalled,
    Role,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    ToolStatus,
    TrajectoryStarted,
)
from tests.agents.adapters.scripted import Reply as Answer
from tests.agents.adapters.scripted import message, message_stream, scripted_endpoint
from tests.agents.adapters.shop import by_trajectory, fields_of
from tests.agents.gateway.clients.gateway_process import Launcher, running_process
from tests.agents.gateway.clients.installed import binary
from tests.agents.gateway.clients.programs import CLAUDE_CODE, OFFLINE
from tests.agents.gateway.clients.script import PlayedModel
from tests.agents.gateway.running import assert_exact, calls_in, recorded_in
from tests.agents.gateway.scripted_engine import Reply
from tests.agents.sdk_helpers import NOWHERE, kinds
from tests.beside import installed
from tests.conftest import Engine

pytestmark = pytest.mark.clients

ADAPTERS = Path(__file__).parents[2] / "adapters"
ASKED, TASK = "Find out whether boots are in stock.", "Look into the storeroom."
SUB_DONE, DONE = "There are two pairs.", "We have both."
CALLS = (
    ("mcp__shop__search", {"query": "44"}),
    ("Bash", {"command": "echo no shop; exit 3", "description": "Asks"}),
    ("Agent", {"prompt": TASK, "description": "Look", "subagent_type": "general-purpose"}),
)
SUB_CALL = ("Bash", {"command": "echo two", "description": "Counts"})


@pytest.fixture(autouse=True)
def _sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(ADAPTERS / "claude-agent-sdk.txt"))])


def environment(url: str, home: Path) -> dict[str, str]:
    """Claude Code's: no network but loopback, and agents in the foreground."""
    return {
        **OFFLINE,
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "k",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it may run as root
    }


def options(url: str, folder: Path, **more: Any) -> Any:
    """Claude Code with an empty home and a tool of this process."""
    import claude_agent_sdk as sdk

    @sdk.tool("search", "Search the shop.", {"query": str})
    async def search(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"boots {arguments['query']}"}]}

    (folder / "work").mkdir(parents=True)
    return sdk.ClaudeAgentOptions(
        env=environment(url, folder),
        model="policy",
        cwd=folder / "work",
        cli_path=binary(CLAUDE_CODE),
        permission_mode="bypassPermissions",
        mcp_servers={"shop": sdk.create_sdk_mcp_server("shop", tools=[search])},
        **more,
    )


async def answers_of(headrace: Headrace, options: Any) -> list[str]:
    """What the program reads: the answers of its turns."""
    from headrace.agents.adapters.claude_agent_sdk import HeadraceRecording

    recording = HeadraceRecording(headrace, agent="checkout", task_id="order-17")
    messages = [each async for each in recording.query(prompt=ASKED, options=options)]
    return [str(each.result) for each in messages if type(each).__name__ == "ResultMessage"]


def due(said: Sequence[str], asked: str, *, is_sub: bool) -> tuple[str, tuple[str, dict[str, Any]] | None]:
    """Text and tool call of the answer that follows the answers ``said``."""
    calls, done = ((SUB_CALL,), SUB_DONE) if is_sub else (CALLS, DONE)
    return (asked, calls[len(said)]) if len(said) < len(calls) else (done, None)


def claude(body: dict[str, Any]) -> Answer:
    """A model behind Anthropic's API."""
    history = body["messages"]
    said = [each for each in history if each["role"] == "assistant"]
    text, call = due(said, "Let me see.", is_sub=TASK in json.dumps(history[0]))
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
    number = sum(len(json.dumps(each)) for each in history)
    if call is not None:
        blocks.append({"type": "tool_use", "id": f"toolu_{number}", "name": call[0], "input": call[1]})
    return answer(body, *blocks)


def answer(body: dict[str, Any], *blocks: dict[str, Any]) -> Answer:
    """An answer with an id of its own, by which Claude Code's messages belong together."""
    unique = {"id": f"msg_{len(body['messages'])}_{len(json.dumps(body))}"}
    if not body.get("stream"):
        return Answer(message(*blocks) | unique)
    events = message_stream(*blocks)
    events[0]["message"] |= unique
    return Answer(events)


@pytest.mark.parametrize("is_shown", [False, True], ids=["default", "with_texts"])
async def test_claude_code_s_messages_are_recorded(
    is_shown: bool, tmp_path: Path, headrace: Headrace, notes: list[Note]
) -> None:
    """``is_shown``: whether the program asks for the texts of sub-agents in the foreground."""
    with scripted_endpoint() as endpoint:
        endpoint.model = claude
        assert await answers_of(headrace, options(endpoint.url, tmp_path / "home", forward_subagent_text=is_shown)) == [
            DONE
        ]
    main, sub = (sorted(own, key=lambda note: note.seq or 0) for own in by_trajectory(notes))
    turn = ("model.called", "tool.called", "tool.returned")
    assert kinds(main) == [
        *("trajectory.started", *turn, *turn),
        *("model.called", "tool.called", "subagent.started", "subagent.finished", "tool.returned"),
        *("model.called", "trajectory.ended"),
    ]
    last = ["model.called"] if is_shown else []
    assert kinds(sub) == ["trajectory.started", *turn, *last, "trajectory.ended"]
    assert (main[0].fields["task_id"], main[-1].fields["answer"]) == ("order-17", DONE)
    assert sub[0].fields["agent"] == "general-purpose"
    assert SUB_DONE in sub[-1].fields["answer"]
    assert [(each["tool"], each["arguments"]) for each in fields_of(main, "tool.called")] == [*CALLS]
    results = fields_of(main, "tool.returned")
    assert [each["status"] for each in results] == ["ok", "error", "ok"]
    for each, expected in zip(results, ("boots 44", "no shop", SUB_DONE), strict=True):
        assert expected in each["result"]
    first = fields_of(main, "model.called")[0]["messages"]
    assert [each["role"] for each in first] == ["user", "assistant"]
    assert first[0]["content"] == ASKED
    assert fields_of(sub, "model.called")[0]["messages"][0]["content"] == TASK
    assert headrace.stats.dropped == {}


class Playing(PlayedModel):
    """The same model behind the gateway."""

    def reply_to(self, body: dict[str, Any]) -> Reply:
        prompt = self.codec.decode(body["token_ids"])
        said = [""] * self.turn_of(body["token_ids"])
        text, call = due(said, "Let me see.", is_sub=ASKED not in prompt)
        if call is not None:
            text += f"\n<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"
        self._answers = [text]
        return super().reply_to(body)


@pytest.mark.vllm
async def test_through_the_gateway_it_is_one_exact_trajectory_with_feedback(
    long_render_server: Engine, launcher: Launcher, tmp_path: Path, headrace: Headrace, notes: list[Note]
) -> None:
    model = Playing([], long_render_server.model_dir, long_render_server.url)
    async with model, running_process(tmp_path / "gateway", model.url, launcher) as gateway:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{gateway.url}/sessions", json={"session": "thread-7", "task_id": "order-17"}) as response,
        ):
            opened = await response.json()
        with headrace.gateway_session(opened["session"], trajectory_id=opened["trajectory"]) as session:
            answers = await answers_of(headrace, options(gateway.url, tmp_path / "home"))
        session.feedback("accepted", 1.0)
    assert [each.strip() for each in answers] == [DONE], gateway.log()
    events = gateway.recorded()
    main = opened["trajectory"]
    assert [(note.model.TYPE, note.trajectory_id) for note in notes] == [("headrace.feedback.given.v1", main)]
    own = [each.fact for each in events if each.trajectory_id == main]
    turn = [ModelCalled, ToolCalled, ToolReturned]
    assert [type(each) for each in own] == [
        *(TrajectoryStarted, *turn, *turn, ModelCalled, ToolCalled, SubagentStarted, ToolReturned, SubagentFinished),
        ModelCalled,
    ]
    assert isinstance(own[0], TrajectoryStarted)
    assert (own[0].task_id, own[0].role) == ("order-17", Role.TRAINABLE)
    assert [each.status for each in own if isinstance(each, ToolReturned)] == [
        *(ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OK),
    ]
    (sub,) = {each.trajectory_id for each in events} - {main}
    assert [type(each.fact) for each in events if each.trajectory_id == sub][:5] == [
        *(TrajectoryStarted, *turn, ModelCalled),
    ]
    assert len(calls_in(events)) == len(model.played) == 6
    assert {tuple(each.sampling.altered_by) for each in calls_in(events)} == {()}
    assert assert_exact(events) == 2


async def test_the_snippet_of_the_page(tmp_path: Path) -> None:
    page = (ADAPTERS.parents[2] / "agents" / "README.md").read_text()
    program = page.partition("```python claude-agent-sdk\n")[2].partition("```")[0]

    def model(body: dict[str, Any]) -> Answer:
        call = {"type": "tool_use", "id": "toolu_1", "name": CALLS[0][0], "input": CALLS[0][1]}
        is_due = body.get("tools") and "tool_result" not in json.dumps(body["messages"])
        return answer(body, call if is_due else {"type": "text", "text": DONE})

    with scripted_endpoint() as endpoint:
        endpoint.model = model
        env = {
            **environment(endpoint.url, tmp_path),
            "ANTHROPIC_MODEL": "policy",
            "HEADRACE_KAFKA": NOWHERE,
            STATE_VARIABLE: str(tmp_path / "state"),
            "PATH": f"{binary(CLAUDE_CODE).parent}:/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-c", program), cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(120):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert (process.returncode, output.decode()) == (0, f"{DONE}\n")
    events = [each.fact for each in recorded_in(tmp_path / "state" / "headrace", NOWHERE, "account", "")]
    assert sorted(type(each).__name__ for each in events) == [
        *("ModelCalled", "ModelCalled", "ToolCalled", "ToolReturned", "TrajectoryEnded", "TrajectoryStarted"),
    ]
    (started,) = (each for each in events if isinstance(each, TrajectoryStarted))
    assert (started.task_id, started.agent) == ("order-17", "checkout")
    (result,) = (each.result for each in events if isinstance(each, ToolReturned))
    assert result == "boots, sandals"
