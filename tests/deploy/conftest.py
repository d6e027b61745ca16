"""Light parts: small processes that run a given script, for tests of the stack that need no broker."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.processes.process import Process, ReportStatus
from headrace.deploy.system.children import Command

READY = (
    "import os, socket, time\n"
    "ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "ready.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
)
SERVE = READY + "time.sleep(600)\n"


def python(script: str, *arguments: str) -> Command:
    """Returns a command that runs ``script``."""
    return Command((sys.executable, "-I", "-S", "-c", script, *arguments))


def light_part(name: str, script: str = SERVE, needs: tuple[str, ...] = ()) -> Process:
    """Returns a part that runs ``script``."""

    async def command(settings: Settings, report: ReportStatus) -> Command:
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
    """Returns a function that makes the script of a part that signals readiness and then does something."""
    return lambda script: READY + script


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", stop_grace_s=2.0, start_timeout_s=20.0)
