"""Alertmanager itself takes the alerts, keeps an episode as one of them, and ends it."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.deploy.system.ports import HOST, free_ports
from headrace.schemas.records.alert import EpisodeState
from headrace.streams.notifying.delivery import Alertmanager
from headrace.streams.notifying.formats import Notice
from tests.streams.notifying.builders import notice

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

pytestmark = pytest.mark.skipif(
    PROGRAM is None and os.environ.get("CI") != "true",
    reason="Alertmanager is not installed (apt-get install prometheus-alertmanager)",
)

CONFIG = """
route: {receiver: nobody}
receivers: [{name: nobody}]
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[str]:
    """The address of an Alertmanager."""
    assert PROGRAM is not None
    (folder / "config.yml").write_text(CONFIG)
    port = free_ports(1)[0]
    address = f"http://{HOST}:{port}"
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            f"--config.file={folder / 'config.yml'}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{port}",
            "--cluster.listen-address=",
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                assert process.returncode is None, (folder / "log").read_text()
                try:
                    async with session.get(f"{address}/-/ready") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        yield address
    finally:
        process.terminate()
        await process.wait()


async def open_alerts(address: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"{address}/api/v2/alerts") as answer:
        found: list[dict[str, Any]] = await answer.json()
        return found


def now(state: EpisodeState, *, since_ms: int, at_ms: int) -> Notice:
    """The notice of an episode that began at ``since_ms``."""
    made = notice(state)
    assert made.alert.episode is not None
    episode = made.alert.episode.model_copy(update={"since_ms": since_ms})
    return replace(made, time_ms=at_ms, alert=made.alert.model_copy(update={"episode": episode}))


async def test_an_episode_is_one_alert_until_it_is_resolved(tmp_path: Path) -> None:
    at_ms = time.time_ns() // 1_000_000
    async with running(tmp_path) as address:
        sink = Alertmanager(address)
        for state in (EpisodeState.OPENED, EpisodeState.ONGOING, EpisodeState.OPENED, EpisodeState.ACKNOWLEDGED):
            await sink.deliver(now(state, since_ms=at_ms - 60_000, at_ms=at_ms))
        (found,) = await open_alerts(address)
        assert found["labels"] == {
            "alertname": "monitor_talks",
            "severity": "warning",
            "run": "r",
            "component": "watch",
            "episode": "e-1",
            "agent": "search",
        }
        assert found["annotations"] == {"summary": "More attempts talk.", "examples": "t-1 t-2"}
        assert found["status"]["state"] == "active"
        week_ms = 7 * 86_400_000
        await sink.repeat([now(EpisodeState.ONGOING, since_ms=at_ms - 60_000, at_ms=at_ms)], at_ms + week_ms)
        (again,) = await open_alerts(address)
        assert again["labels"] == found["labels"]
        assert again["endsAt"] > found["endsAt"]
        await sink.deliver(now(EpisodeState.RESOLVED, since_ms=at_ms - 60_000, at_ms=at_ms + 1))
        async with asyncio.timeout(30):
            while await open_alerts(address):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(0.1)


async def test_an_alert_without_an_episode_is_taken(tmp_path: Path) -> None:
    plain = notice().alert.model_copy(update={"episode": None})
    async with running(tmp_path) as address:
        await Alertmanager(address).deliver(Notice("n-2", time.time_ns() // 1_000_000, plain))
        (found,) = await open_alerts(address)
        assert "episode" not in found["labels"]
