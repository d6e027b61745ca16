"""The service Daytona (package ``daytona``, tried with the interface of 0.226): snapshots of files.

provider = Remote(Daytona())       # the key is in DAYTONA_API_KEY
"""

import shlex
import uuid
from typing import Any

from headrace.agents.sandbox.protocol import SandboxError, SnapshotKind


class Daytona:
    """The service. Its package is imported when it is created."""

    name = "daytona"
    kinds = frozenset({SnapshotKind.FILES})

    def __init__(self, snapshot: str | None = None, lifetime_minutes: int = 60) -> None:
        """``snapshot``: name of what machines start from; ``None``: Daytona's default. ``lifetime_minutes``: after
        which Daytona removes a machine."""
        import daytona

        self._daytona: Any = daytona
        self._client: Any = daytona.AsyncDaytona()
        self._snapshot = snapshot
        self._lifetime_minutes = lifetime_minutes

    async def create(self, snapshot_id: str | None) -> "DaytonaMachine":
        """Start a machine without a network."""
        start = snapshot_id or self._snapshot
        parameters = self._daytona.CreateSandboxFromSnapshotParams(
            snapshot=start, network_block_all=True, ttl_minutes=self._lifetime_minutes
        )
        try:
            sandbox = await self._client.create(parameters)
        except self._daytona.DaytonaError as error:
            raise SandboxError(f"Daytona did not start a machine from {start or 'its default'}: {error}") from error
        return DaytonaMachine(self._daytona, sandbox)


class DaytonaMachine:
    """A sandbox of Daytona."""

    work = "/tmp/work"

    def __init__(self, daytona: Any, sandbox: Any) -> None:
        self.id: str = sandbox.id
        self._daytona = daytona
        self._sandbox = sandbox

    async def run(self, command: str, timeout_s: float) -> str:
        """Run a shell command."""
        try:
            reply = await self._sandbox.process.exec(command, timeout=int(timeout_s) + 1)
        except self._daytona.DaytonaError as error:
            raise SandboxError(f"Daytona: {error}") from error
        if reply.exit_code != 0:
            raise SandboxError(f"Daytona: a command exited with {reply.exit_code}: {reply.result[-300:]}")
        return str(reply.result)

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        try:
            await self.run(shlex.join(["mkdir", "-p", "--", path.rpartition("/")[0]]), 30)
            await self._sandbox.fs.upload_file(content, path)
        except self._daytona.DaytonaError as error:
            raise SandboxError(f"Daytona could not write {path}: {error}") from error

    async def download(self, path: str) -> bytes:
        """Return a file's content."""
        try:
            return bytes(await self._sandbox.fs.download_file(path))
        except self._daytona.DaytonaError as error:
            raise SandboxError(f"Daytona could not read {path}: {error}") from error

    async def snapshot(self, kind: SnapshotKind) -> str:
        """Freeze the files under a new name, which is the id."""
        name = f"headrace-{uuid.uuid4().hex}"
        try:
            await self._sandbox.create_snapshot(name)
        except self._daytona.DaytonaError as error:
            raise SandboxError(f"Daytona took no snapshot of {self.id}: {error}") from error
        return name

    async def stop(self) -> None:
        """Remove the machine."""
        await self._sandbox.delete()
