"""The echo environment that ``openenv init`` writes, unchanged, in a Python of its own, through a whole gateway."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from headrace.agents.environments.openenv import OpenEnvConfig, openenv_environment
from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, run_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.deploy.system.ports import free_port
from headrace.schemas.events import EndStatus
from tests.agents.environments.played import Logged, playing
from tests.agents.gateway.clients.installed import programs_of
from tests.conftest import Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm]

OPENENV = ("openenv==0.10.0",)
START_S = 120.0


@asynccontextmanager
async def echo_environment(folder: Path) -> AsyncIterator[str]:
    """Address of the environment's server."""
    programs, port = programs_of(OPENENV), free_port()
    path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    written = await asyncio.to_thread(
        subprocess.run,
        [programs / "openenv", "init", "echo_env", "--output-dir", str(folder)],
        env=env, capture_output=True, text=True, check=False, timeout=START_S,
    )  # fmt: skip
    assert (folder / "echo_env" / "server" / "app.py").is_file(), written.stdout + written.stderr
    argv = ["-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    log = (folder / "server.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        programs / "python", *argv, cwd=folder / "echo_env", env=env, stdout=log, stderr=log
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
            while True:
                assert process.returncode is None, (folder / "server.log").read_text()
                try:
                    async with http.get(f"{url}/health") as response:
                        assert response.ok
                        break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.2)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        log.close()


async def test_the_echo_environment_becomes_a_group_with_its_rewards(
    environment_render: Engine, tmp_path: Path
) -> None:
    """The server has room for one episode, the others wait for it."""
    plans = (("hi", "hey"), ('{"message": "hello there"}', '```json\n{"message": "bye"}\n```'))
    async with (
        playing(tmp_path / "gateway", environment_render, plans) as (engine, gateway),
        echo_environment(tmp_path) as url,
        gateway_sessions(gateway.url) as sessions,
        openenv_environment(OpenEnvConfig(url, [{"seed": 3}], max_turns=2)) as environment,
    ):
        rollouts = RolloutsConfig(group_size=4, concurrency=4)
        tally = await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
    log = Logged(tmp_path / "gateway")
    log.assert_exact(engine)
    log.assert_groups([4], lambda ended: ended.answer["rewards"]["openenv"][0], EndStatus.TURNS_EXHAUSTED)
    assert sorted(tally.outcomes) == pytest.approx([0.5, 0.5, 1.3, 1.3])
    assert all(each.answer["metrics"] == {"turns": 2, "steps": 2, "invalid_actions": 0} for each in log.ended.values())
