"""The provider ``overlay``: overlayfs layers and bubblewrap. Files only; forks in less than a millisecond.

A sandbox is a folder with an upper layer above frozen ones. It is mounted while a command runs and at no other time,
in namespaces of its own and as an unprivileged user, so no privilege is needed, and nothing is left to clean up on the
host if this process is killed. A snapshot moves the upper layer into the store; a fork is a new, empty upper layer.

    provider = await Overlay.create(Path("sandboxes"))
    sandbox = await provider.start({"main.py": b"print(1)"})
    snapshot = await sandbox.snapshot()
    one, other = await sandbox.fork(snapshot, 2)
"""

import asyncio
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from headrace.agents.sandbox.cgroups import ControlGroups, Group, GroupsUnavailable
from headrace.agents.sandbox.command import check_command, resource_limits, run_command
from headrace.agents.sandbox.confined import (
    PROGRAMS,
    WORK,
    View,
    confined,
    default_view,
    mask_arguments,
    overlay_options,
)
from headrace.agents.sandbox.layers import folder_at, merge, read_merged, write_merged
from headrace.agents.sandbox.listing import Usage, exceeds, list_folder, usage
from headrace.agents.sandbox.namespace_end import NamespaceEnd
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
    SnapshotUnsupported,
    TooLarge,
)
from headrace.agents.sandbox.store import Manifest, Store, make_readable, remove_folder
from headrace.agents.sandbox.unlinked import unlinked_bytes

NOBODY = 65534
"""User as which sandboxed code runs if this process is root."""

MAX_LAYERS = 32
"""Layers of a snapshot above which they are merged into one. (The kernel takes about 60 by the length of their names,
which must fit into a page.)"""

_DEFAULT_LIMITS = Limits()


class Overlay:
    """The provider. One per store and process; its sandboxes run concurrently."""

    name = "overlay"

    def __init__(self, store: Store, view: View, groups: ControlGroups | None, user: int | None) -> None:
        """Use :meth:`create`, which checks that all of it works."""
        self.store = store
        self.view = view
        self.groups = groups
        self.user = user

    @classmethod
    async def create(cls, folder: Path, *, view: View | None = None, user: int = NOBODY) -> "Overlay":
        """Return the provider with its store in ``folder``, after a command has run in a sandbox.

        ``view``: what commands see of the host. ``user``: as whom they run if this process is root; otherwise they run
        as this process's user. Raises :class:`ProviderUnavailable` with the reason and, if known, what mends it."""
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            raise ProviderUnavailable(
                f"there is no {', '.join(missing)} on the PATH: apt-get install bubblewrap util-linux mount"
            )
        user_or_none = user if os.geteuid() == 0 else None
        try:
            groups = await asyncio.to_thread(ControlGroups.detect)
        except GroupsUnavailable:
            groups = None
        store = await asyncio.to_thread(Store, folder, owner=user_or_none)
        provider = cls(store, default_view() if view is None else view, groups, user_or_none)
        try:
            await provider._probe()
        except SandboxError:
            store.close()
            raise
        return provider

    async def _probe(self) -> None:
        sandbox = await self.start({"probe.txt": b"probe"})
        try:
            result = await sandbox.execute(["sh", "-c", "cat probe.txt && rm probe.txt && python3 -c pass"])
        except SandboxError as error:
            raise ProviderUnavailable(str(error)) from error
        finally:
            await sandbox.stop()
        if result.exit_code != 0 or result.stdout != b"probe":
            raise ProviderUnavailable(f"a command in a sandbox failed: {result.stderr[-500:].decode(errors='replace')}")

    async def start(self, files: Mapping[str, bytes] | Path, limits: Limits = _DEFAULT_LIMITS) -> "OverlaySandbox":
        """Start a sandbox with ``files``; see :class:`~headrace.agents.sandbox.protocol.Provider`."""
        return await asyncio.to_thread(self._start, files, limits)

    def _start(self, files: Mapping[str, bytes] | Path, limits: Limits) -> "OverlaySandbox":
        content = self.store.new_layer()
        try:
            for parts, data, is_executable in initial_files(files, limits):
                write_merged([os.fspath(content)], parts, data, self.user, 0o755 if is_executable else 0o644)
            with self.store.adding():
                return self._open(self._freeze(content, None, ()), limits)
        finally:
            remove_folder(content)

    def _freeze(self, content: Path, parent: str | None, layers: tuple[str, ...]) -> Manifest:
        """Move the folder ``content`` into the store as the topmost layer above ``layers``. Raises :class:`StoreFull`,
        leaving ``content`` where it is."""
        listing = list_folder(content)
        digest = hashlib.sha256(json.dumps([parent, listing.sha256]).encode()).hexdigest()
        if self.store.has(digest):
            manifest = self.store.manifest(digest)
            remove_folder(content)  # another sandbox has done the same from the same snapshot
            return manifest
        if len(layers) + 1 <= MAX_LAYERS:
            manifest = Manifest(digest, self.name, SnapshotKind.FILES, parent, (*layers, listing.sha256), listing.bytes)
            self.store.add(content, listing, manifest)
            return manifest
        merged = self.store.new_layer()
        try:
            if self.user is not None:
                os.chown(merged, self.user, self.user)
            stack = [os.fspath(content), *(os.fspath(self.store.layer(name)) for name in reversed(layers))]
            merge(stack, merged, self.user)
            listing = list_folder(merged)
            manifest = Manifest(digest, self.name, SnapshotKind.FILES, parent, (listing.sha256,), listing.bytes)
            self.store.add(merged, listing, manifest)
        finally:
            remove_folder(merged)
        remove_folder(content)
        return manifest

    async def restore(self, snapshot: Snapshot, limits: Limits = _DEFAULT_LIMITS) -> "OverlaySandbox":
        """Start a sandbox from a snapshot that any process took with this store."""
        return (await asyncio.to_thread(self._restore, snapshot.id, limits, 1))[0]

    def _restore(self, snapshot_id: str, limits: Limits, n: int) -> list["OverlaySandbox"]:
        with self.store.adding():
            manifest = self.store.find(snapshot_id, self.name)
            return [self._open(manifest, limits) for _ in range(n)]

    def _open(self, manifest: Manifest, limits: Limits) -> "OverlaySandbox":
        mask_arguments(limits.masked, self.view)  # a wrong path is an error now, not at the first command
        return OverlaySandbox(self, self.store.new_sandbox(manifest.layers, "upper", "work"), limits, manifest)

    def close(self) -> None:
        """Remove the work folders of this process. Snapshots stay."""
        if self.groups is not None:
            self.groups.remove_own()
        self.store.close()


class OverlaySandbox:
    """Layers in the store, an upper layer of its own, and commands that run on them."""

    def __init__(self, provider: Overlay, folder: Path, limits: Limits, manifest: Manifest) -> None:
        self.id = folder.name
        self.limits = limits
        self._provider = provider
        self._folder = folder
        self._upper = folder / "upper"
        self._manifest = manifest
        self._lock = asyncio.Lock()
        self._group: Group | None = None
        self._already = Usage()
        self._is_stopped = False

    def _check(self) -> None:
        if self._is_stopped:
            raise SandboxStopped(f"the sandbox {self.id} was stopped")

    @property
    def layers(self) -> list[str]:
        """Real folders of the merged work folder, the topmost first."""
        store = self._provider.store
        return [os.fspath(self._upper), *(os.fspath(store.layer(name)) for name in reversed(self._manifest.layers))]

    async def execute(
        self, command: Sequence[str], *, cwd: str = "", stdin: bytes = b"", timeout_s: float | None = None
    ) -> Executed:
        """Run ``command`` in namespaces of its own; see :class:`~headrace.agents.sandbox.protocol.Sandbox`."""
        check_command(command)
        parts = parts_of(cwd, folder=True)
        async with self._lock:
            self._check()
            await asyncio.to_thread(self._enter, parts)
            return await self._execute(command, parts, stdin, timeout_s)

    def _enter(self, parts: Sequence[str]) -> None:
        """Check that a command can run in the folder ``parts``. The work folder itself is opened for its user, who may
        have closed it: its mode is no part of snapshots either."""
        os.chmod(self._upper, stat.S_IMODE(os.lstat(self._upper).st_mode) | 0o700)
        for end in range(1, len(parts) + 1):
            shown = "/".join(parts[:end])
            stack = folder_at(self.layers, parts[:end])
            if stack is None:
                raise FileMissing(f"there is no folder {shown!r} to run in")
            if not os.lstat(stack[0]).st_mode & 0o100:
                raise PathRefused(f"the folder {shown!r} is closed (its mode has no x for its owner): open it")

    async def _execute(
        self, command: Sequence[str], cwd: Sequence[str], stdin: bytes, timeout_s: float | None
    ) -> Executed:
        provider, limits = self._provider, self.limits
        if provider.groups is not None and (self._group is None or not self._group.exists):
            self._group = provider.groups.create(self.id, limits)
        layers = provider.store.root / "layers"
        own = os.path.relpath(self._folder, layers)
        end = NamespaceEnd()
        try:
            result = await run_command(
                confined(
                    [*resource_limits(limits, has_groups=self._group is not None), *command],
                    options=overlay_options(list(reversed(self._manifest.layers)), f"{own}/upper", f"{own}/work"),
                    cwd=cwd,
                    limits=limits,
                    view=provider.view,
                    user=provider.user,
                    joins=self._group.joins if self._group is not None else (),
                    status_fd=end.write_fd,
                ),
                limits,
                cwd=os.fspath(layers),
                environment={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                stdin=stdin,
                timeout_s=timeout_s,
                is_over_disk=lambda: exceeds(
                    self._upper, limits, self._already, unlinked_bytes(*end.first, WORK) if end.first is not None else 0
                ),
                at_end=lambda: self._group.reached() if self._group is not None else None,
                pass_fds=(end.write_fd,),
                settle=end.wait,
            )
        finally:
            end.close()
        if result.outcome is Outcome.COMPLETED and not end.has_exit_code:
            raise SandboxError(
                f"the sandbox could not be set up: {result.stderr[-500:].decode(errors='replace').strip()}"
            )
        return replace(result, outcome=await asyncio.to_thread(self._count, result.outcome))

    def _count(self, outcome: Outcome) -> Outcome:
        """Remember what the upper layer takes if that is too much, and return the outcome that follows."""
        if not exceeds(self._upper, self.limits):
            self._already = Usage()
            return outcome
        if os.geteuid() != 0:
            make_readable(self._upper)
        self._already = usage(self._upper)
        return Outcome.DISK_FULL if outcome is Outcome.COMPLETED else outcome

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file."""
        parts = parts_of(path)
        async with self._lock:
            self._check()
            return await asyncio.to_thread(read_merged, self.layers, parts, self.limits.read_bytes)

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, with its folders."""
        parts = parts_of(path)
        if len(content) > self.limits.read_bytes:
            raise TooLarge(f"{len(content)} bytes for {path!r}: raise limits.read_bytes")
        async with self._lock:
            self._check()
            await asyncio.to_thread(write_merged, self.layers, parts, content, self._provider.user)

    async def snapshot(self, kind: SnapshotKind = SnapshotKind.FILES) -> Snapshot:
        """Freeze the upper layer; the sandbox continues with a new one above it. Without changes since the last
        snapshot this is that snapshot."""
        if kind is not SnapshotKind.FILES:
            raise SnapshotUnsupported("the provider 'overlay' takes snapshots of files only; use 'runsc' for memory")
        async with self._lock:
            self._check()
            return await asyncio.to_thread(self._snapshot)

    def _snapshot(self) -> Snapshot:
        began = perf_counter()
        provider = self._provider
        if os.geteuid() != 0:
            make_readable(self._upper)
        if exceeds(self._upper, self.limits):
            raise TooLarge(f"the sandbox {self.id} has written more than limits.disk_bytes or limits.disk_files")
        if os.listdir(self._upper):
            before = self._manifest
            self._manifest = provider._freeze(self._upper, before.id, before.layers)
            remove_folder(self._folder / "work")
            provider.store.renew(self._folder, self._manifest.layers, "upper", "work")
        return self._manifest.snapshot(1000 * (perf_counter() - began))

    async def fork(self, snapshot: Snapshot, n: int) -> list[Sandbox]:
        """Start ``n`` sandboxes from ``snapshot``, with the limits of this one."""
        return list(await asyncio.to_thread(self._provider._restore, snapshot.id, self.limits, n))

    async def stop(self) -> None:
        """Remove the upper layer."""
        async with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                if self._group is not None:
                    await asyncio.to_thread(self._group.remove)
                await asyncio.to_thread(remove_folder, self._folder)
