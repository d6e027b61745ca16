"""The containers of gVisor: calls of ``runsc``, and their removal in the background.

runsc --root store/runsc --network=none --platform=ptrace --overlay --ignore-cgroups list -quiet
"""

import asyncio
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from headrace.agents.sandbox.cgroups import Group
from headrace.agents.sandbox.command import run_command
from headrace.agents.sandbox.confined import JOIN
from headrace.agents.sandbox.protocol import Limits, SandboxError
from headrace.agents.sandbox.store import Store, remove_folder

ROOT_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""Environment of runsc itself."""


class Containers:
    """The containers of one store. Their ids begin with the name of the process's folder in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state = store.root / "runsc"
        self._state.mkdir(exist_ok=True, mode=0o700)
        self._ending: set[asyncio.Task[None]] = set()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``runsc``."""
        options = ["--network=none", "--platform=ptrace", "--overlay", "--ignore-cgroups"]
        return ["runsc", "--root", os.fspath(self._state), *options, *arguments]

    async def call(self, *arguments: str, joins: Sequence[str] = (), timeout_s: float = 60.0) -> str:
        """Run ``runsc`` and return what it printed. Raises :class:`SandboxError` with that if it fails."""
        command = self.command(*arguments)
        if joins:
            command = ["sh", "-c", JOIN, "sh", *joins, "--", *command]
        limits = Limits(wall_s=timeout_s)
        # A container keeps the output open and would be killed with the process group, so it gets a file and a session.
        log = self._store.process / f"runsc-{uuid.uuid4().hex[:8]}.log"
        apart = ["setsid", "--wait", "sh", "-c", 'exec "$@" >"$0" 2>&1', os.fspath(log)]
        result = await run_command([*apart, *command], limits, cwd="/", environment=ROOT_PATH)
        printed = log.read_text(errors="replace")
        log.unlink()
        if result.exit_code != 0:
            raise SandboxError(f"runsc {arguments[0]} failed: {printed[-500:].strip() or result.outcome}")
        return printed

    async def ids(self) -> list[str]:
        """Return the ids of all containers of the store, of all processes."""
        return (await self.call("list", "-quiet")).split()

    async def remove_abandoned(self) -> None:
        """Remove the containers of processes that ended."""
        alive = {path.name for path in (self._store.root / "sandboxes").iterdir()}
        for container in await self.ids():
            if container.partition("-")[0] not in alive:
                await self.call("delete", "-force", container)

    def remove_later(
        self,
        container: str | None,
        after: asyncio.Task[None] | None,
        folder: Path | None = None,
        group: Group | None = None,
    ) -> asyncio.Task[None]:
        """Remove a container, then the folder and the control group of its sandbox, in the background: runsc takes
        more than a second. ``after``: an earlier removal of the same sandbox. :meth:`remove_all` waits."""
        task = asyncio.ensure_future(self._remove(container, after, folder, group))
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _remove(
        self, container: str | None, after: asyncio.Task[None] | None, folder: Path | None, group: Group | None
    ) -> None:
        if after is not None:
            await after
        if container is not None and container in await self.ids():
            await self.call("delete", "-force", container)
        if group is not None:
            group.remove()
        if folder is not None:
            await asyncio.to_thread(remove_folder, folder)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._ending.discard(task)  # remove_all() reports those that failed

    async def remove_all(self) -> BaseException | None:
        """Remove the containers of this process, and return the first failure of an earlier removal, if any."""
        done = await asyncio.gather(*self._ending, return_exceptions=True)
        for container in await self.ids():
            if container.startswith(self._store.process.name):
                await self.call("delete", "-force", container)
        return next((each for each in done if each is not None), None)
