"""The service Modal (package ``modal``, tried with the interface of 1.6): snapshots of files, kept for 30 days.

provider = Remote(Modal(image="python:3.11-slim"))       # the token is in MODAL_TOKEN_ID and MODAL_TOKEN_SECRET
"""

from typing import Any

from headrace.agents.sandbox.protocol import SandboxError, SnapshotKind


class Modal:
    """The service. Its package is imported when it is created."""

    name = "modal"
    kinds = frozenset({SnapshotKind.FILES})

    def __init__(
        self, image: str = "python:3.11-slim", app: str = "headrace", lifetime_s: int = 3600, memory_mib: int = 1024
    ) -> None:
        """``image``: of a registry, to start from. ``app``: Modal's app, created if missing. ``lifetime_s``: seconds
        after which Modal removes a machine. ``memory_mib``: its memory."""
        import modal

        self._modal: Any = modal
        self._image = image
        self._app = app
        self._lifetime_s = lifetime_s
        self._memory_mib = memory_mib

    async def create(self, snapshot_id: str | None) -> "ModalMachine":
        """Start a machine without a network."""
        modal = self._modal
        try:
            app = await modal.App.lookup.aio(self._app, create_if_missing=True)
            image = modal.Image.from_id(snapshot_id) if snapshot_id else modal.Image.from_registry(self._image)
            sandbox = await modal.Sandbox.create.aio(
                app=app,
                image=image,
                timeout=self._lifetime_s,
                memory=(self._memory_mib, self._memory_mib),
                block_network=True,
            )
        except modal.exception.Error as error:
            raise SandboxError(f"Modal did not start a machine from {snapshot_id or self._image}: {error}") from error
        return ModalMachine(modal, sandbox)


class ModalMachine:
    """A sandbox of Modal."""

    work = "/root/work"

    def __init__(self, modal: Any, sandbox: Any) -> None:
        self.id: str = sandbox.object_id
        self._modal = modal
        self._sandbox = sandbox

    async def run(self, command: str, timeout_s: float) -> str:
        """Run a shell command."""
        try:
            process = await self._sandbox.exec.aio("sh", "-c", command, timeout=int(timeout_s) + 1)
            printed = await process.stdout.read.aio()
            code = await process.wait.aio()
            if code != 0:
                errors = await process.stderr.read.aio()
                raise SandboxError(f"Modal: a command exited with {code}: {errors[-300:]}")
        except self._modal.exception.Error as error:
            raise SandboxError(f"Modal: {error}") from error
        return str(printed)

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        try:
            await self._sandbox.filesystem.write_bytes.aio(content, path)
        except self._modal.exception.Error as error:
            raise SandboxError(f"Modal could not write {path}: {error}") from error

    async def download(self, path: str) -> bytes:
        """Return a file's content."""
        try:
            return bytes(await self._sandbox.filesystem.read_bytes.aio(path))
        except self._modal.exception.Error as error:
            raise SandboxError(f"Modal could not read {path}: {error}") from error

    async def snapshot(self, kind: SnapshotKind) -> str:
        """Freeze the files as an image."""
        try:
            return str((await self._sandbox.snapshot_filesystem.aio()).object_id)
        except self._modal.exception.Error as error:
            raise SandboxError(f"Modal took no snapshot of {self.id}: {error}") from error

    async def stop(self) -> None:
        """Remove the machine."""
        await self._sandbox.terminate.aio()
