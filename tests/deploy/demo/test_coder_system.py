"""The coder's attempts run in isolated sandboxes, or say that they do not."""

import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import ProviderUnavailable
from headrace.deploy.demo import coder_system


async def test_sandboxes_are_isolated_where_the_machine_can(tmp_path: Path) -> None:
    try:
        (await Overlay.create(tmp_path)).close()
    except ProviderUnavailable as error:
        pytest.skip(str(error))
    async with coder_system._provider(None) as provider:
        assert isinstance(provider, Overlay)


async def test_without_isolation_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unavailable(*_: Any, **__: Any) -> Overlay:
        raise ProviderUnavailable("there is no bwrap")

    monkeypatch.setattr(Overlay, "create", unavailable)
    with caplog.at_level(logging.WARNING):
        async with coder_system._provider(None) as provider:
            assert isinstance(provider, Local)
            sandbox = await provider.start({"a.txt": b"1"})
            assert await sandbox.read("a.txt") == b"1"
            await sandbox.stop()
    assert "there is no bwrap" in caplog.text
