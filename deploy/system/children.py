"""Child processes that die with their parent, whatever ends it: see ``lifeline.py`` for how."""

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
    """Environment variables on top of ours."""
    unset: tuple[str, ...] = ()
    """Environment variables that it must not inherit."""

    def environment(self) -> dict[str, str]:
        """The whole environment that it runs in."""
        inherited = {name: value for name, value in os.environ.items() if name not in self.unset}
        return inherited | dict(self.env)


class Child:
    """A running command, under a lifeline of its own. Its output is appended to ``log``."""

    def __init__(self, command: Command, log: Path) -> None:
        """Start ``command``, whose files are its owner's alone. Blocks for some 50 ms.

        Raises ``OSError`` where no process can be made, or its log cannot be written.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.log_start = log.stat().st_size if log.exists() else 0
        """Where its own output begins in ``log``, in bytes: what stands before is an earlier process's."""
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
        """Process id of the command itself; 0 where it never came to be."""

    def last_output(self) -> str:
        """The end of its own output, for an error message."""
        return end_of(self.log, since=self.log_start)

    def poll(self) -> int | None:
        """Exit status (128 + n for signal n, −n where the lifeline itself was killed), or ``None`` while it runs."""
        return self._wrapper.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Block until it ended; raises ``subprocess.TimeoutExpired``."""
        return self._wrapper.wait(timeout_s)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        if self._wrapper.poll() is None:
            self._wrapper.terminate()

    def kill_command(self) -> None:
        """``kill -9`` of the command alone, as an accident would: its lifeline clears the rest away."""
        if self.pid and self._wrapper.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """End the whole tree at once; returns the exit status."""
        self.lifeline.close()
        status = self._wrapper.wait()
        if status < 0 and self.pid:
            # The lifeline itself was killed: the command died with it, its group may not have.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        return status

    def stop(self, grace_s: float = 10.0) -> int:
        """Ask it to end, wait ``grace_s``, then kill what is left; returns the exit status."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wrapper.wait(grace_s)
        return self.kill()


async def wait_for_exit(child: Child) -> int:
    """Wait for the end of ``child``; returns its exit status."""
    while True:
        status = child.poll()
        if status is not None:
            return status
        await asyncio.sleep(_POLL_S)


async def stop(child: Child, grace_s: float) -> int:
    """:meth:`Child.stop` that leaves the event loop free."""
    child.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await wait_for_exit(child)
    return child.kill()


async def run_to_end(command: Command, log: Path) -> int:
    """Start ``command`` and wait for it; killed with its tree where the waiting is cancelled."""
    child = Child(command, log)
    try:
        return await wait_for_exit(child)
    finally:
        child.kill()


def end_of(log: Path, lines: int = 15, max_bytes: int = 16 * 1024, *, since: int = 0) -> str:
    """The last ``lines`` of ``log`` from byte ``since`` on, for an error message; empty where there is none.

    A log that is shorter than ``since`` was emptied meanwhile (:func:`bound_log`): all of it counts then.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        size = log.stat().st_size
        file.seek(max(since if since <= size else 0, size - max_bytes))
        text = file.read().decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-lines:])


def bound_log(log: Path, max_bytes: int) -> None:
    """Move what ``log`` holds to ``log.1`` once it is larger than ``max_bytes``, under its writers' hands.

    They append, so they go on at the start of the emptied file. What is written between the copy and the cut is lost,
    as with logrotate's ``copytruncate``.
    """
    if log.exists() and log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
