"""A sandbox provider, a module of the standard library, and a task of it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.agents.coder.deletion.features import features
from headrace.agents.coder.deletion.installation import Installation, NoSuchModule, installation
from headrace.agents.coder.deletion.tasks import DeletionTask, verified
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import ProviderUnavailable

MODULE, FEATURE = "colorsys", "rgb_to_hls"


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Overlay]:
    try:
        overlay = await Overlay.create(tmp_path / "overlay")
    except ProviderUnavailable as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    yield overlay
    overlay.close()


@pytest.fixture
def installed() -> Installation:
    try:
        return installation(MODULE)
    except NoSuchModule as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))


_found: list[DeletionTask] = []
"""The task, once it is verified."""


@pytest.fixture
async def task(provider: Overlay, installed: Installation) -> DeletionTask:
    if not _found:
        feature = next(each for each in features(installed.source) if each.name == FEATURE)
        found = await verified(provider, installed, feature)
        assert isinstance(found, DeletionTask)
        _found.append(found)
    return _found[0]
