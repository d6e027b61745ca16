"""The example in curl: one trajectory with exact tokens, its tools, its outcome and feedback."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.schemas.events import (
    EndStatus,
    FeedbackGiven,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
)
from tests.agents.gateway.clients.gateway_process import GatewayProcess, Launcher, launching, running_process
from tests.agents.gateway.running import Recorded, exact_calls
from tests.agents.gateway.scripted_engine import Fault, FileCodec, Reply, ScriptedEngine
from tests.conftest import Engine
from tests.needs import needs

pytestmark = [pytest.mark.vllm, needs("curl"), needs("jq")]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "agents" / "gateway" / "README.md").read_text()
THINKING = "<think>\nthe user wants to know\n</think>\n\n"
CALL = f'{THINKING}<tool_call>\n{{"name": "search", "arguments": {{"size": "44"}}}}\n</tool_call>'
ANSWER = "We have boots."


END = 2
"""The tiny model's end token."""


def engine(render: Engine, *texts: str, fault: Fault | None = None) -> ScriptedEngine:
    """An engine that renders and parses as vLLM does, and samples ``texts``."""
    replies = [Reply(text, ends_with=(END,), fault=fault) for text in texts]
    return ScriptedEngine(replies, codec=FileCodec(render.model_dir), upstream=render.url)


@pytest.fixture(scope="module")
def launcher(render_server: Engine) -> Iterator[Launcher]:
    """Starts gateways with the model's parsers."""
    with launching(render_server.model_dir) as launcher:
        yield launcher


async def run_page(gateway: GatewayProcess) -> subprocess.CompletedProcess[str]:
    """Run the command that the gateway's page shows."""
    command = re.search(r"```sh curl-session\n(.*?)```", PAGE, re.S)
    assert command is not None
    argv = ["bash", "-euo", "pipefail", "-c", command[1].replace("http://127.0.0.1:8200", gateway.url)]
    return await asyncio.to_thread(subprocess.run, argv, cwd=ROOT, capture_output=True, text=True, timeout=120)


def end_in(events: list[Recorded]) -> TrajectoryEnded:
    (end,) = (each.fact for each in events if isinstance(each.fact, TrajectoryEnded))
    return end


async def test_it_becomes_one_exact_trajectory(render_server: Engine, launcher: Launcher, tmp_path: Path) -> None:
    async with (
        engine(render_server, CALL, THINKING + ANSWER) as model,
        running_process(tmp_path, model.url, launcher) as gateway,
    ):
        ended = await run_page(gateway)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, ANSWER, ""), gateway.log()

    events = gateway.recorded()
    assert len({each.trajectory_id for each in events}) == 1
    calls = exact_calls(events)
    assert [call.starts_segment for call in calls] == [True, False]
    assert [list(call.prompt_ids) for call in calls] == [request["token_ids"] for request in model.requests]
    assert [list(call.fact.sampled_ids or ()) for call in calls] == model.sampled
    started, called, returned = (
        next(each.fact for each in events if isinstance(each.fact, kind))
        for kind in (TrajectoryStarted, ToolCalled, ToolReturned)
    )
    assert (started.task_id, started.agent) == ("order-17", "checkout")
    assert (called.tool, called.arguments) == ("search", {"size": "44"})
    assert (returned.call_id, "sandals" in str(returned.result)) == (called.call_id, True)
    assert (end_in(events).status, end_in(events).outcome) == (EndStatus.COMPLETED, 1.0)
    (feedback,) = (each.fact for each in events if isinstance(each.fact, FeedbackGiven))
    assert (feedback.signal, feedback.value) == ("accepted", 1.0)


async def test_its_session_ends_as_failed_if_the_model_does(
    render_server: Engine, launcher: Launcher, tmp_path: Path
) -> None:
    async with (
        engine(render_server, CALL, fault=Fault.STATUS_500) as model,
        running_process(tmp_path, model.url, launcher) as gateway,
    ):
        ended = await run_page(gateway)
    assert ended.returncode != 0
    assert '"error"' in ended.stderr
    events = gateway.recorded()
    assert end_in(events).status is EndStatus.FAILED
    assert not any(isinstance(each.fact, FeedbackGiven) for each in events)


async def test_it_says_which_setting_is_missing() -> None:
    script = str(ROOT / "agents" / "examples" / "curl" / "session.sh")
    environment = {name: value for name, value in os.environ.items() if name != "GATEWAY"}
    ended = await asyncio.to_thread(
        subprocess.run, ["bash", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode != 0
    assert "GATEWAY: set it to the address of the gateway" in ended.stderr
