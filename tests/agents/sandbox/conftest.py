"""Sandboxes of the providers that work without a service. In CI they must; elsewhere a test is skipped with the reason
and the command that mends it."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import Limits, ProviderUnavailable, Sandbox

SMALL = Limits(
    wall_s=20,
    cpu_s=10,
    memory_bytes=128 * 2**20,
    processes=24,
    open_files=64,
    file_bytes=8 * 2**20,
    output_bytes=4096,
    read_bytes=2**20,
    disk_bytes=4 * 2**20,
    disk_files=200,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a store. (An overlay cannot be mounted with layers on an overlay, such as a container's disk.)"""
    with tempfile.TemporaryDirectory(prefix="headrace-sandbox-", ignore_cleanup_errors=True) as path:
        yield Path(path)


async def new_overlay(folder: Path) -> Overlay:
    try:
        return await Overlay.create(folder / "store")
    except ProviderUnavailable as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))


@pytest.fixture
async def overlay(folder: Path) -> AsyncIterator[Overlay]:
    provider = await new_overlay(folder)
    yield provider
    provider.close()


@pytest.fixture
async def sandbox(overlay: Overlay) -> AsyncIterator[Sandbox]:
    sandbox = await overlay.start({"main.py": b"print('hello')\n"}, SMALL)
    yield sandbox
    await sandbox.stop()


@pytest.fixture(params=["local", "overlay"])
async def provider(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Local | Overlay]:
    if request.param == "overlay":
        overlay = await new_overlay(folder)
        yield overlay
        overlay.close()
    else:
        local = Local(folder / "store", warn=False)
        yield local
        local.store.close()
