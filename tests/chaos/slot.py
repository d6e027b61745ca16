"""A slot for one worker process, which is restarted whenever it ends."""

import asyncio
import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.deploy.system.children import Child, Command, end_of, wait_for_exit
from tests.chaos.proxy import Proxy

_RESTART_PAUSE_S = 0.3
_TERM_GRACE_S = 20.0


class Role(StrEnum):
    """A worker's role."""

    ASSEMBLE = "assembler"
    """``headrace worker assemble``."""
    DECIDE = "decider"
    """``headrace worker workers``: score and group."""
    TRAIN = "trainer"
    """A test trainer that trains or rejects every group."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a worker process."""

    slot: str
    """Which."""
    status: int
    """128 + n for signal n."""
    words: str
    """Its last line."""


class Slot:
    """A slot for one worker process, which is kept running while it is wanted."""

    def __init__(self, name: str, role: Role, command: Command, log: Path, proxy: Proxy) -> None:
        self.name = name
        self.role = role
        self.log = log
        self.proxy = proxy
        self.exits: list[Exit] = []
        """Every end so far."""
        self.busy = False
        """Whether the worker has a fault."""
        self._command = command
        self._wanted = asyncio.Event()
        self._child: Child | None = None

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._child is not None and self._child.poll() is None

    @property
    def log_size(self) -> int:
        """Bytes in its log."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, size: int) -> str:
        """The text of its log after the first ``size`` bytes."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(size)
            return file.read().decode(errors="replace")

    async def keep(self) -> None:
        """Start the process whenever it is wanted and does not run; never returns."""
        try:
            while True:
                await self._wanted.wait()
                self._child = Child(self._command, self.log)
                status = await wait_for_exit(self._child)
                self.exits.append(Exit(self.name, status, (end_of(self.log, lines=1) or "").strip()))
                await asyncio.sleep(_RESTART_PAUSE_S)
        finally:
            if self._child is not None:
                self._child.kill()

    def want(self) -> None:
        """Start the process, and restart it whenever it ends."""
        self._wanted.set()

    def leave(self) -> None:
        """Do not restart the process."""
        self._wanted.clear()

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill_command()

    async def terminate(self) -> None:
        """Send SIGTERM and wait for the end; send SIGKILL after a grace period."""
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            await asyncio.wait_for(wait_for_exit(child), _TERM_GRACE_S)
        except TimeoutError:
            child.kill_command()

    def freeze(self) -> bool:
        """Send SIGSTOP; returns whether a process was running."""
        return self._signal(signal.SIGSTOP)

    def thaw(self) -> bool:
        """Send SIGCONT; returns whether a process was running."""
        return self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> bool:
        if not self.runs or self._child is None or not self._child.pid:
            return False
        os.kill(self._child.pid, number)
        return True
