"""The service e2b (package ``e2b``, tried with the interface of 2.63): snapshots of files, and of memory and files.

provider = Remote(E2b(template="base"))       # the key is in E2B_API_KEY
"""

from typing import Any

from headrace.agents.sandbox.protocol import SandboxError, SnapshotKind

MODES = {SnapshotKind.FILES: "filesystem", SnapshotKind.MEMORY: "full"}
"""e2b's names of the kinds."""


class E2b:
    """The service. Its package is imported when it is created."""

    name = "e2b"
    kinds = frozenset(SnapshotKind)

    def __init__(self, template: str = "base", lifetime_s: int = 3600) -> None:
        """``template``: what machines start from. ``lifetime_s``: seconds after which e2b removes a machine."""
        import e2b

        self._e2b: Any = e2b
        self._errors = (e2b.SandboxException, e2b.AuthenticationException, e2b.ServiceBusyException)
        self._template = template
        self._lifetime_s = lifetime_s

    async def create(self, snapshot_id: str | None) -> "E2bMachine":
        """Start a machine without access to the internet."""
        try:
            sandbox = await self._e2b.AsyncSandbox.create(
                snapshot_id or self._template, timeout=self._lifetime_s, allow_internet_access=False
            )
        except self._errors as error:
            raise SandboxError(f"e2b did not start a machine from {snapshot_id or self._template}: {error}") from error
        return E2bMachine(self._e2b, sandbox, self._errors)


class E2bMachine:
    """A sandbox of e2b."""

    work = "/home/user/work"

    def __init__(self, e2b: Any, sandbox: Any, errors: tuple[type[Exception], ...]) -> None:
        self.id: str = sandbox.sandbox_id
        self._e2b = e2b
        self._sandbox = sandbox
        self._errors = errors

    async def run(self, command: str, timeout_s: float) -> str:
        """Run a shell command."""
        try:
            return str((await self._sandbox.commands.run(command, timeout=timeout_s)).stdout)
        except self._e2b.CommandExitException as error:
            raise SandboxError(f"e2b: a command exited with {error.exit_code}: {error.stderr[-300:]}") from error
        except self._errors as error:
            raise SandboxError(f"e2b: {error}") from error

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        try:
            await self._sandbox.files.write(path, content)
        except self._errors as error:
            raise SandboxError(f"e2b could not write {path}: {error}") from error

    async def download(self, path: str) -> bytes:
        """Return a file's content."""
        try:
            return bytes(await self._sandbox.files.read(path, format="bytes"))
        except self._errors as error:
            raise SandboxError(f"e2b could not read {path}: {error}") from error

    async def snapshot(self, kind: SnapshotKind) -> str:
        """Freeze the machine, which pauses it."""
        try:
            return str((await self._sandbox.create_snapshot(mode=MODES[kind])).snapshot_id)
        except self._errors as error:
            raise SandboxError(f"e2b took no snapshot of {self.id}: {error}") from error

    async def stop(self) -> None:
        """Remove the machine."""
        await self._sandbox.kill()
