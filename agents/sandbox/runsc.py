"""The provider ``runsc``: gVisor, a kernel in user space. Snapshots have the memory of running processes and the files.

A sandbox is a container whose writes stay in gVisor's memory (``--overlay``), so that a checkpoint contains them.
A checkpoint ends the container; the sandbox continues from the checkpoint like any fork. Needs root.

    provider = await Runsc.create(Path("sandboxes"))
    sandbox = await provider.start({"server.py": SERVER})
    await sandbox.execute(["sh", "-c", "python3 server.py >/dev/null 2>&1 &"])
    one, other = await sandbox.fork(await sandbox.snapshot(SnapshotKind.MEMORY), 2)
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from headrace.agents.sandbox.bundle import USER, write_bundle
from headrace.agents.sandbox.cgroups import ControlGroups, Group, GroupsUnavailable
from headrace.agents.sandbox.command import check_command, resource_limits, run_command
from headrace.agents.sandbox.confined import WORK, View, default_view
from headrace.agents.sandbox.containers import ROOT_PATH, Containers
from headrace.agents.sandbox.layers import write_merged
from headrace.agents.sandbox.listing import list_folder
from headrace.agents.sandbox.paths import initial_files, parts_of
from headrace.agents.sandbox.protocol import (
    Executed,
    FileMissing,
    Limits,
    Outcome,
    PathRefused,
    ProviderUnavailable,
    Sandbox,
    SandboxError,
    SandboxStopped,
    Snapshot,
    SnapshotKind,
    SnapshotUnknown,
    SnapshotUnsupported,
    TooLarge,
)
from headrace.agents.sandbox.store import Manifest, Store, remove_folder

KERNEL_THREADS = 400
"""Threads of gVisor itself in a sandbox's control group, beside its ``processes``."""

KERNEL_BYTES = 128 * 2**20
"""Memory of gVisor itself in a sandbox's control group, beside its ``memory_bytes``."""

GRACE_S = 10.0
"""Seconds that runsc may take beside the command itself."""

_DEFAULT_LIMITS = Limits()

READ = 'test -e "$1" || test -L "$1" || exit 3; test -L "$1" && exit 4; test -f "$1" || exit 4; head -c "$2" -- "$1"'
"""Prints a regular file; exit 3: missing, 4: something else."""

ENTER = (
    'for f; do test -e "$f" || test -L "$f" || exit 3; test -d "$f" && ! test -L "$f" && test -x "$f" || exit 4; done'
)
"""Exit 0 if its arguments are folders and can be entered; exit 3: one is missing, 4: something else."""

WRITE = 'test -d "$1" && exit 4; mkdir -p -- "$(dirname -- "$1")" && cat > "$1.new~" && mv -fT -- "$1.new~" "$1"'
"""Replaces a file by the standard input."""


class Runsc:
    """The provider. One per store and process."""

    name = "runsc"

    def __init__(self, store: Store, view: View, groups: ControlGroups | None) -> None:
        """Use :meth:`create`, which checks that it works."""
        self.store = store
        self.view = view
        self.groups = groups
        self.containers = Containers(store)

    @classmethod
    async def create(cls, folder: Path, *, view: View | None = None) -> "Runsc":
        """Return the provider with its store in ``folder``, after a command has run in a sandbox. Removes containers
        of processes that ended. Raises :class:`ProviderUnavailable`."""
        if shutil.which("runsc") is None:
            raise ProviderUnavailable("there is no runsc on the PATH: apt-get install runsc")
        if os.geteuid() != 0:
            raise ProviderUnavailable("runsc needs root here: run as root, or use 'overlay'")
        try:
            groups = await asyncio.to_thread(ControlGroups.detect)
        except GroupsUnavailable:
            groups = None
        provider = cls(await asyncio.to_thread(Store, folder), default_view() if view is None else view, groups)
        try:
            await provider.containers.remove_abandoned()
            sandbox = await provider.start({"probe.txt": b"probe"})
            result = await sandbox.execute(["cat", "probe.txt"])
            await sandbox.stop()
        except SandboxError as error:
            await provider.close()
            raise ProviderUnavailable(f"runsc could not start a sandbox: {error}") from error
        if result.stdout != b"probe":
            await provider.close()
            raise ProviderUnavailable(f"a command in a sandbox failed: {result.stderr[-500:].decode(errors='replace')}")
        return provider

    async def start(self, files: Mapping[str, bytes] | Path, limits: Limits = _DEFAULT_LIMITS) -> "RunscSandbox":
        """Start a sandbox with ``files``; see :class:`~headrace.agents.sandbox.protocol.Provider`."""
        layer = await asyncio.to_thread(self._base, files, limits)
        return await self._open((layer,), limits, None)

    def _base(self, files: Mapping[str, bytes] | Path, limits: Limits) -> str:
        """Return the name of the layer with the files to start with, which a checkpoint needs again."""
        content = self.store.new_layer()
        try:
            for parts, data, is_executable in initial_files(files, limits):
                write_merged([os.fspath(content)], parts, data, USER, 0o755 if is_executable else 0o644)
            os.chown(content, USER, USER)
            content.chmod(0o755)
            listing = list_folder(content)
            base = hashlib.sha256(f"runsc {listing.sha256}".encode()).hexdigest()
            manifest = Manifest(base, self.name, SnapshotKind.FILES, None, (listing.sha256,), listing.bytes)
            self.store.add(content, listing, manifest)
        finally:
            remove_folder(content)
        return listing.sha256

    async def restore(self, snapshot: Snapshot, limits: Limits = _DEFAULT_LIMITS) -> "RunscSandbox":
        """Start a sandbox from a checkpoint that any process took with this store."""
        manifest = self.store.find(snapshot.id, self.name)
        if manifest.kind != SnapshotKind.MEMORY:
            raise SnapshotUnsupported(f"the snapshot {snapshot.id} is no checkpoint")
        return await self._open(manifest.layers, limits, manifest.id)

    async def _open(self, layers: tuple[str, ...], limits: Limits, parent: str | None) -> "RunscSandbox":
        with self.store.adding():
            if not all(self.store.layer(name).is_dir() for name in layers):
                raise SnapshotUnknown(
                    f"the store {self.store.root} no longer has the files of the sandbox: start again"
                )
            folder = self.store.new_sandbox(layers)
        sandbox = RunscSandbox(self, folder, limits, layers[0])
        try:
            await sandbox.begin(None if parent is None else layers[1], parent)
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    async def close(self) -> None:
        """Remove the containers and work folders of this process. Snapshots stay. Raises :class:`SandboxError` if a
        sandbox could not be removed before."""
        failure = await self.containers.remove_all()
        if self.groups is not None:
            self.groups.remove_own()
        self.store.close()
        if failure is not None:
            raise SandboxError(f"a sandbox of runsc could not be removed: {failure}") from failure


class RunscSandbox:
    """A container, and the layer of the files that it started with."""

    def __init__(self, provider: Runsc, folder: Path, limits: Limits, base: str) -> None:
        self.id = folder.name
        self.limits = limits
        self._provider = provider
        self._folder = folder
        self._base = base
        self._parent: str | None = None
        self._container: str | None = None
        self._starts = 0
        self._group: Group | None = None
        self._removal: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._is_stopped = False

    async def begin(self, checkpoint: str | None, parent: str | None) -> None:
        """Start the container, from the layer ``checkpoint`` if given."""
        provider, store = self._provider, self._provider.store
        bundle = self._folder / "bundle"
        if not bundle.exists():
            write_bundle(bundle, store.layer(self._base), provider.view, self.limits)
        if provider.groups is not None and self._group is None:
            own = replace(
                self.limits,
                memory_bytes=self.limits.memory_bytes + KERNEL_BYTES,
                processes=self.limits.processes + KERNEL_THREADS,
            )
            self._group = provider.groups.create(self.id, own)
        self._starts += 1
        container = f"{store.process.name}-{self.id}-{self._starts}"
        how = ["run"] if checkpoint is None else ["restore", "-image-path", os.fspath(store.layer(checkpoint))]
        joins = self._group.joins if self._group is not None else []
        self._container = container
        await provider.containers.call(*how, "-detach", "-bundle", os.fspath(bundle), container, joins=joins)
        self._parent = parent

    def _check(self) -> str:
        if self._is_stopped or self._container is None:
            raise SandboxStopped(f"the sandbox {self.id} was stopped, or killed at a limit")
        return self._container

    async def execute(
        self, command: Sequence[str], *, cwd: str = "", stdin: bytes = b"", timeout_s: float | None = None
    ) -> Executed:
        """Run ``command``. Processes that it leaves in the background keep running, and are part of snapshots."""
        check_command(command)
        parts = parts_of(cwd, folder=True)
        async with self._lock:
            if parts:
                await self._enter(parts)
            return await self._execute(command, parts, stdin, timeout_s, self.limits)

    async def _enter(self, parts: Sequence[str]) -> None:
        """Check that a command can run in the folder ``parts``, as far as what runs in the background leaves it so."""
        shown = ["/".join([WORK, *parts[:end]]) for end in range(1, len(parts) + 1)]
        found = await self._execute(["sh", "-c", ENTER, "sh", *shown], (), b"", None, self.limits)
        if found.exit_code == 3:
            raise FileMissing(f"there is no folder {'/'.join(parts)!r} to run in")
        if found.exit_code != 0:
            raise PathRefused(f"{'/'.join(parts)!r} is no folder to run in, or is closed")

    async def _execute(
        self,
        command: Sequence[str],
        cwd: Sequence[str],
        stdin: bytes,
        timeout_s: float | None,
        limits: Limits,
    ) -> Executed:
        container = self._check()
        wall_s = limits.wall_s if timeout_s is None else min(timeout_s, limits.wall_s)
        runsc = self._provider.containers.command("exec", "-user", f"{USER}:{USER}", "-cwd", "/".join([WORK, *cwd]))
        inside = ["timeout", "-s", "KILL", f"{wall_s:.3f}", *resource_limits(limits, has_groups=True), *command]
        began = perf_counter()
        result = await run_command(
            [*runsc, container, *inside],
            replace(limits, wall_s=wall_s + GRACE_S),
            cwd="/",
            environment=ROOT_PATH,
            stdin=stdin,
            at_end=lambda: self._group.reached() if self._group is not None else None,
        )
        outcome = result.outcome
        if result.exit_code == 128 + 9 and perf_counter() - began >= wall_s and outcome is Outcome.COMPLETED:
            return replace(result, exit_code=None, outcome=Outcome.TIMED_OUT)
        if result.exit_code is None or outcome is Outcome.OUT_OF_MEMORY:
            self._end()  # what the command left running in the sandbox cannot be told apart
        elif result.exit_code == 128 and b"executing processes for container" in result.stderr:
            await self._check_running(container, result.stderr[-300:].decode(errors="replace"))
        return result

    async def _check_running(self, container: str, said: str) -> None:
        """Raise :class:`SandboxStopped` if the container has ended, as a command can bring about by killing its first
        process. A container that runs has run the command, which may print what runsc prints."""
        if '"status": "running"' not in await self._provider.containers.call("state", container):
            self._end()
            raise SandboxStopped(f"the sandbox {self.id} was ended by a command: {said}")

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file."""
        shown = "/".join([WORK, *parts_of(path)])
        most = self.limits.read_bytes
        limits = replace(self.limits, output_bytes=most + 1)
        async with self._lock:
            command = ["sh", "-c", READ, "sh", shown, str(most + 1)]
            result = await self._execute(command, (), b"", None, limits)
        if result.exit_code == 3:
            raise FileMissing(f"there is no file {path!r}")
        if result.exit_code != 0:
            raise PathRefused(f"{path!r} cannot be read: {result.stderr[-200:].decode(errors='replace')}")
        if len(result.stdout) > most:
            raise TooLarge(f"{path!r} has more than {most} bytes: raise limits.read_bytes")
        return result.stdout

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, with its folders. (Links on the way are followed inside the sandbox.)"""
        shown = "/".join([WORK, *parts_of(path)])
        if len(content) > self.limits.read_bytes:
            raise TooLarge(f"{len(content)} bytes for {path!r}: raise limits.read_bytes")
        async with self._lock:
            result = await self._execute(["sh", "-c", WRITE, "sh", shown], (), content, None, self.limits)
        if result.exit_code != 0:
            raise PathRefused(f"{path!r} cannot be written: {result.stderr[-200:].decode(errors='replace')}")

    async def snapshot(self, kind: SnapshotKind = SnapshotKind.MEMORY) -> Snapshot:
        """Checkpoint the container and continue from the checkpoint."""
        if kind is not SnapshotKind.MEMORY:
            raise SnapshotUnsupported(
                "the provider 'runsc' takes snapshots of memory and files together (SnapshotKind.MEMORY); use "
                "'overlay' for files alone"
            )
        async with self._lock:
            container = self._check()
            began = perf_counter()
            store = self._provider.store
            image = store.new_layer()
            try:
                await self._provider.containers.call("checkpoint", "-image-path", os.fspath(image), container)
                listing = await asyncio.to_thread(list_folder, image)
                layers = (self._base, listing.sha256)
                digest = hashlib.sha256(json.dumps([self._parent, *layers]).encode()).hexdigest()
                manifest = Manifest(digest, Runsc.name, kind, self._parent, layers, listing.bytes)
                await asyncio.to_thread(store.add, image, listing, manifest)
            finally:
                await asyncio.to_thread(remove_folder, image)
            store.renew(self._folder, layers)
            self._end()
            await self.begin(listing.sha256, digest)
            return manifest.snapshot(1000 * (perf_counter() - began))

    async def fork(self, snapshot: Snapshot, n: int) -> list[Sandbox]:
        """Start ``n`` sandboxes from ``snapshot``, with the limits of this one."""
        return [await self._provider.restore(snapshot, self.limits) for _ in range(n)]

    def _end(self) -> None:
        container, self._container = self._container, None
        self._removal = self._provider.containers.remove_later(container, self._removal)

    async def stop(self) -> None:
        """Kill the container, in the background."""
        async with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                container, self._container = self._container, None
                self._removal = self._provider.containers.remove_later(
                    container, self._removal, self._folder, self._group
                )
