"""Sandboxes whose snapshots, forks and restores are events of a trajectory.

    environment.snapshotted {"snapshot_id": "9f86…", "parent_id": "2c26…", "kind": "files", "ms": 4.7}

Commands, reads and writes are not recorded here: for the agent they are tools, and tools are recorded as such.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.agents.sandbox.protocol import Executed, Limits, Provider, Sandbox, Snapshot, SnapshotKind
from headrace.agents.trajectory import Trajectory

_DEFAULT_LIMITS = Limits()


class RecordedSandbox:
    """A sandbox, and the trajectory to which its events belong."""

    def __init__(self, sandbox: Sandbox, trajectory: Trajectory, provider_name: str) -> None:
        self.id = sandbox.id
        self.sandbox = sandbox
        """The sandbox itself, whose methods record nothing."""
        self._trajectory = trajectory
        self._provider_name = provider_name

    async def execute(
        self, command: Sequence[str], *, cwd: str = "", stdin: bytes = b"", timeout_s: float | None = None
    ) -> Executed:
        """Run ``command``."""
        return await self.sandbox.execute(command, cwd=cwd, stdin=stdin, timeout_s=timeout_s)

    async def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return await self.sandbox.read(path)

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        await self.sandbox.write(path, content)

    async def snapshot(self, kind: SnapshotKind = SnapshotKind.FILES) -> Snapshot:
        """Freeze the present state, and record it."""
        taken = await self.sandbox.snapshot(kind)
        self._trajectory.snapshotted(taken.id, ms=taken.ms, **_fields(taken, self._provider_name))
        return taken

    async def fork(self, snapshot: Snapshot, n: int) -> list[Sandbox]:
        """Start ``n`` sandboxes, and record that. They belong to other attempts: wrap each with its trajectory, and
        call :meth:`began_from`."""
        began = perf_counter()
        forks = await self.sandbox.fork(snapshot, n)
        ms = 1000 * (perf_counter() - began)
        self._trajectory.forked(snapshot.id, n, ms=ms, **_fields(snapshot, self._provider_name))
        return forks

    def began_from(self, snapshot: Snapshot, source_trajectory_id: str | None = None, ms: float = 0.0) -> None:
        """Record that this sandbox started from ``snapshot``, taken in ``source_trajectory_id`` if that is another
        trajectory. ``ms``: milliseconds that it took."""
        self._trajectory.restored(
            snapshot.id, source_trajectory_id=source_trajectory_id, ms=ms, **_fields(snapshot, self._provider_name)
        )

    async def stop(self) -> None:
        """Stop the sandbox."""
        await self.sandbox.stop()


async def start_recorded(
    provider: Provider,
    trajectory: Trajectory,
    files: Mapping[str, bytes] | Path,
    limits: Limits = _DEFAULT_LIMITS,
) -> RecordedSandbox:
    """Start a sandbox with ``files`` whose events belong to ``trajectory``."""
    return RecordedSandbox(await provider.start(files, limits), trajectory, provider.name)


async def restore_recorded(
    provider: Provider,
    trajectory: Trajectory,
    snapshot: Snapshot,
    limits: Limits = _DEFAULT_LIMITS,
    source_trajectory_id: str | None = None,
) -> RecordedSandbox:
    """Start a sandbox from ``snapshot`` and record that; ``source_trajectory_id``: see
    :meth:`RecordedSandbox.began_from`."""
    began = perf_counter()
    restored = RecordedSandbox(await provider.restore(snapshot, limits), trajectory, provider.name)
    restored.began_from(snapshot, source_trajectory_id, 1000 * (perf_counter() - began))
    return restored


def _fields(snapshot: Snapshot, provider_name: str) -> dict[str, Any]:
    return {
        "parent_id": snapshot.parent,
        "kind": snapshot.kind,
        "sha256": snapshot.sha256,
        "provider": provider_name,
    }
