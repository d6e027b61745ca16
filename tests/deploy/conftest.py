"""Light parts: processes that cost nothing and behave as told, for everything about the stack that needs no broker."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.processes.process import Process, ReportStatus
from headrace.deploy.system.children import Command

READY = (
    "import os, socket, time\n"
    "said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "said.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
)
SERVE = READY + "time.sleep(600)\n"


def python(script: str, *arguments: str) -> Command:
    """A command that runs ``script``."""
    return Command((sys.executable, "-I", "-S", "-c", script, *arguments))


def light_part(name: str, script: str = SERVE, needs: tuple[str, ...] = ()) -> Process:
    """A part that runs ``script``."""

    async def command(settings: Settings, say: ReportStatus) -> Command:
        return python(script)

    return Process(name, "a light part", command=command, needs=needs, memory_mb=1)


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("HEADRACE_") and name != "HEADRACE_CACHE":
            monkeypatch.delenv(name)


@pytest.fixture
def light() -> Callable[..., Process]:
    return light_part


@pytest.fixture
def ready_then() -> Callable[[str], str]:
    """Makes the script of a part that serves and then does something."""
    return lambda script: READY + script


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", stop_grace_s=2.0, start_timeout_s=20.0)
