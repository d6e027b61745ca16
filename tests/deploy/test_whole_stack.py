"""The whole local stack, every part the real one: addresses, loopback only, memory, kill -9, nothing left."""

import asyncio
import json
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.parts import PARTS
from headrace.deploy.settings import load_settings
from headrace.deploy.stack import Stack, running_stack
from headrace.deploy.state import State

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse, pytest.mark.vllm, pytest.mark.slow]

GIB = 1024**3
MAX_RESIDENT = 8 * GIB
KILLED = ("assemble", "workers", "sink", "trainer", "follower", "dashboard", "clickhouse")
"""Each is killed with kill -9; Kafka and vLLM, which only take longer, have tests of their own."""


def processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def unshared_bytes(members: list[psutil.Process]) -> int:
    return sum(member.memory_full_info().uss for member in members)


def listening(members: list[psutil.Process]) -> set[str]:
    """Interfaces that somebody listens on."""
    return {
        connection.laddr.ip
        for member in members
        for connection in member.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


async def until_ready_again(stack: Stack, names: tuple[str, ...]) -> None:
    def ready(name: str) -> bool:
        part = stack.parts[name]
        return part.restarts >= 1 and part.state is State.READY

    async with asyncio.timeout(180):
        while not all(map(ready, names)):  # noqa: ASYNC110 - another process's state has no event to wait for
            await asyncio.sleep(0.2)


async def test_every_part_comes_up_survives_kill_9_and_goes(tmp_path: Path) -> None:
    before = set(processes())
    settings = load_settings(data=str(tmp_path))
    async with running_stack(settings, on_progress=print) as stack:
        assert {name: part.state for name, part in stack.parts.items()} == {part.name: State.READY for part in PARTS}

        shown = json.loads(CliRunner().invoke(cli, ["status", "--json", "--data", str(tmp_path)]).stdout)
        assert {name: shown[name] for name in ("kafka", "clickhouse", "vllm", "dashboard")} == dict(stack.addresses)
        async with httpx.AsyncClient(timeout=30) as client:
            for url in (shown["dashboard"], shown["clickhouse"] + "/ping", shown["vllm"] + "/health"):
                assert (await client.get(url, follow_redirects=True)).status_code == httpx.codes.OK, url

        members = sorted(set(processes()) - before, key=lambda member: member.pid)
        assert listening(members) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert unshared_bytes(members) < MAX_RESIDENT

        for name in KILLED:
            stack.kill_part(name)
        await until_ready_again(stack, KILLED)
        members = sorted(set(processes()) - before, key=lambda member: member.pid)
    assert not any(member.is_running() for member in members)
