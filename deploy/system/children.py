"""Child processes that are killed when their parent ends, however it ends; ``lifeline.py`` explains how."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LIFELINE = Path(__file__).with_name("lifeline.py")
_START_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start."""

    argv: tuple[str, ...]
    """Program and arguments."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to those of this process."""
    unset: tuple[str, ...] = ()
    """Environment variables that it must not inherit."""

    def environment(self) -> dict[str, str]:
        """Returns the program's whole environment."""
        inherited = {name: value for name, value in os.environ.items() if name not in self.unset}
        return inherited | dict(self.env)


class Child:
    """A running command with a lifeline process of its own. Its output is appended to ``log``."""

    def __init__(self, command: Command, log: Path) -> None:
        """Start ``command`` with a umask that keeps its files private. Blocks for about 50 ms.

        Raises ``OSError`` if no process can be created or the log cannot be written.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.log_start = log.stat().st_size if log.exists() else 0
        """Offset in bytes at which its output begins in ``log``, after that of earlier processes."""
        self.lifeline, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self._wrapper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LIFELINE), *command.argv],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                env=command.environment(),
                start_new_session=True,
                umask=0o077,
            )
        self.lifeline.settimeout(_START_S)
        with self.lifeline.makefile("rb") as lines:
            announced = lines.readline()
        self.lifeline.setblocking(False)
        self.pid = int(announced or 0)
        """Process id of the command itself; 0 if it could not be started."""

    def last_output(self) -> str:
        """Returns the end of the command's output, for an error message."""
        return end_of(self.log, since=self.log_start)

    def poll(self) -> int | None:
        """Returns the exit status, or ``None`` while the command runs.

        The status is 128 + n after signal n, and −n if the lifeline itself was killed by signal n.
        """
        return self._wrapper.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Block until the command has ended; raises ``subprocess.TimeoutExpired``."""
        return self._wrapper.wait(timeout_s)

    def terminate(self) -> None:
        """Send SIGTERM to the command."""
        if self._wrapper.poll() is None:
            self._wrapper.terminate()

    def kill_command(self) -> None:
        """Kill the command alone with SIGKILL, as a crash would; its lifeline kills its descendants."""
        if self.pid and self._wrapper.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Kill the whole process tree immediately; returns the exit status."""
        self.lifeline.close()
        status = self._wrapper.wait()
        if status < 0 and self.pid:
            # The lifeline was killed, and the command with it, but the rest of the process group may still run.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        return status

    def stop(self, grace_s: float = 10.0) -> int:
        """Send SIGTERM, wait ``grace_s``, then kill what still runs; returns the exit status."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wrapper.wait(grace_s)
        return self.kill()


async def wait_for_exit(child: Child) -> int:
    """Wait until ``child`` has ended; returns its exit status."""
    while True:
        status = child.poll()
        if status is not None:
            return status
        await asyncio.sleep(_POLL_S)


async def stop(child: Child, grace_s: float) -> int:
    """:meth:`Child.stop` without blocking the event loop."""
    child.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await wait_for_exit(child)
    return child.kill()


async def run_to_end(command: Command, log: Path) -> int:
    """Start ``command`` and wait for it; its process tree is killed if the wait is cancelled."""
    child = Child(command, log)
    try:
        return await wait_for_exit(child)
    finally:
        child.kill()


def end_of(log: Path, lines: int = 15, max_bytes: int = 16 * 1024, *, since: int = 0) -> str:
    """Returns the last ``lines`` of ``log`` after byte ``since``, for an error message; empty if there is no log.

    A log that is shorter than ``since`` was truncated meanwhile (:func:`bound_log`); then all of it is used.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        size = log.stat().st_size
        file.seek(max(since if since <= size else 0, size - max_bytes))
        text = file.read().decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-lines:])


def bound_log(log: Path, max_bytes: int) -> None:
    """Move the content of ``log`` to ``log.1`` if it is larger than ``max_bytes``, while processes write to it.

    The writers append, so they continue at the start of the truncated file. Output between the copy and the truncation
    is lost, as with logrotate's ``copytruncate``.
    """
    if log.exists() and log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
