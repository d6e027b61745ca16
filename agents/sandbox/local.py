"""The provider ``local``: commands run as the user of this process, without isolation, in a folder of their own.

It is for code that is trusted as much as this process, and for machines on which no other provider works. Commands see
the host's files, its network and its processes. Snapshots and forks are copies.

    provider = Local(Path("sandboxes"))
    sandbox = await provider.start({"main.py": b"print(1)"})
"""

import asyncio
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from headrace.agents.sandbox.command import check_command, resource_limits, run_command
from headrace.agents.sandbox.listing import Usage, exceeds, list_folder, usage
from headrace.agents.sandbox.paths import (
    initial_files,
    mode_of,
    open_folder,
    parts_of,
    put_regular,
    read_regular,
)
from headrace.agents.sandbox.protocol import (
    Executed,
    FileMissing,
    Limits,
    Outcome,
    PathRefused,
    Sandbox,
    SandboxStopped,
    Snapshot,
    SnapshotKind,
    SnapshotUnsupported,
    TooLarge,
)
from headrace.agents.sandbox.store import Manifest, Store, remove_folder

_DEFAULT_LIMITS = Limits()


class LocalIsNotIsolated(UserWarning):
    """The provider ``local`` protects the host from nothing."""


class Local:
    """The provider. One per store and process; sandboxes of one provider run concurrently."""

    name = "local"

    def __init__(self, store: Store | Path, *, warn: bool = True) -> None:
        """``store``: a store, or its folder. ``warn``: whether to warn that nothing is isolated."""
        if warn:
            warnings.warn(
                "the sandbox provider 'local' does not isolate: commands can read and change everything that this "
                "process can. `headrace sandbox` says how to get 'overlay'",
                LocalIsNotIsolated,
                stacklevel=2,
            )
        self.store = store if isinstance(store, Store) else Store(store)

    async def start(self, files: Mapping[str, bytes] | Path, limits: Limits = _DEFAULT_LIMITS) -> "LocalSandbox":
        """Start a sandbox with ``files``; see :class:`~headrace.agents.sandbox.protocol.Provider`."""
        _refuse_masks(limits)
        return await asyncio.to_thread(self._start, files, limits)

    def _start(self, files: Mapping[str, bytes] | Path, limits: Limits) -> "LocalSandbox":
        folder = self.store.new_sandbox((), "work")
        try:
            fill(folder / "work", files, limits)
        except BaseException:
            remove_folder(folder)
            raise
        return LocalSandbox(self, folder, limits, None)

    async def restore(self, snapshot: Snapshot, limits: Limits = _DEFAULT_LIMITS) -> "LocalSandbox":
        """Start a sandbox from a snapshot that any process took with this store."""
        _refuse_masks(limits)
        return await asyncio.to_thread(self._restore, snapshot, limits)

    def _restore(self, snapshot: Snapshot, limits: Limits) -> "LocalSandbox":
        with self.store.adding():
            manifest = self.store.find(snapshot.id, self.name)
            folder = self.store.new_sandbox(manifest.layers)
        try:
            copy_tree(self.store.layer(manifest.layers[0]), folder / "work")
        except BaseException:
            remove_folder(folder)
            raise
        return LocalSandbox(self, folder, limits, manifest.id)


class LocalSandbox:
    """A folder, and commands that run in it."""

    def __init__(self, provider: Local, folder: Path, limits: Limits, parent: str | None) -> None:
        self.id = folder.name
        self.limits = limits
        self._provider = provider
        self._folder = folder
        self._work = folder / "work"
        self._parent = parent
        self._lock = asyncio.Lock()
        self._already = Usage()
        self._is_stopped = False

    def _check(self) -> None:
        if self._is_stopped:
            raise SandboxStopped(f"the sandbox {self.id} was stopped")

    async def execute(
        self, command: Sequence[str], *, cwd: str = "", stdin: bytes = b"", timeout_s: float | None = None
    ) -> Executed:
        """Run ``command``; see :class:`~headrace.agents.sandbox.protocol.Sandbox`. A process that starts a session of
        its own outlives the command: only an isolating provider can end it."""
        check_command(command)
        parts = parts_of(cwd, folder=True)
        async with self._lock:
            self._check()
            folder = await asyncio.to_thread(folder_below, self._work, parts)
            result = await run_command(
                [*resource_limits(self.limits, has_groups=False), *command],
                self.limits,
                cwd=folder,
                environment={"PATH": _path(), "HOME": os.fspath(self._work), "LANG": "C.UTF-8"},
                stdin=stdin,
                timeout_s=timeout_s,
                is_over_disk=lambda: exceeds(self._work, self.limits, self._already),
            )
            is_over = await asyncio.to_thread(exceeds, self._work, self.limits)
            self._already = await asyncio.to_thread(usage, self._work) if is_over else Usage()
            if is_over and result.outcome is Outcome.COMPLETED:
                return replace(result, outcome=Outcome.DISK_FULL)
            return result

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file."""
        *folders, name = parts_of(path)
        async with self._lock:
            self._check()
            return await asyncio.to_thread(read_below, self._work, tuple(folders), name, self.limits.read_bytes)

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, with its folders."""
        parts = parts_of(path)
        if len(content) > self.limits.read_bytes:
            raise TooLarge(f"{len(content)} bytes for {path!r}: raise limits.read_bytes")
        async with self._lock:
            self._check()
            await asyncio.to_thread(write_below, self._work, parts, content)

    async def snapshot(self, kind: SnapshotKind = SnapshotKind.FILES) -> Snapshot:
        """Copy the work folder into the store."""
        if kind is not SnapshotKind.FILES:
            raise SnapshotUnsupported("the provider 'local' takes snapshots of files only; use 'runsc' for memory")
        async with self._lock:
            self._check()
            return await asyncio.to_thread(self._snapshot)

    def _snapshot(self) -> Snapshot:
        began = perf_counter()
        store = self._provider.store
        if exceeds(self._work, self.limits):
            raise TooLarge(f"the sandbox {self.id} has written more than limits.disk_bytes or limits.disk_files")
        content = store.new_layer()
        try:
            content.rmdir()
            copy_tree(self._work, content)
            listing = list_folder(content)
            manifest = Manifest(
                listing.sha256, Local.name, SnapshotKind.FILES, self._parent, (listing.sha256,), listing.bytes
            )
            store.add(content, listing, manifest)
        finally:
            remove_folder(content)
        # If nothing has changed since the last snapshot, this is that snapshot, whose parent is another one.
        unchanged = self._parent == listing.sha256
        parent = store.manifest(listing.sha256).parent if unchanged else self._parent
        self._parent = listing.sha256
        return Snapshot(listing.sha256, SnapshotKind.FILES, listing.sha256, parent, 1000 * (perf_counter() - began))

    async def fork(self, snapshot: Snapshot, n: int) -> list[Sandbox]:
        """Start ``n`` sandboxes from ``snapshot``."""
        return [await self._provider.restore(snapshot, self.limits) for _ in range(n)]

    async def stop(self) -> None:
        """Remove the work folder."""
        async with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                await asyncio.to_thread(remove_folder, self._folder)


def _refuse_masks(limits: Limits) -> None:
    if limits.masked:
        raise PathRefused(
            "the provider 'local' cannot hide files (limits.masked): use 'overlay', or remove the setting if the "
            "policy may read them"
        )


def _path() -> str:
    """Return a PATH with this Python's folder first, so that commands find the same ``python3``."""
    return os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"])


def folder_below(root: Path, parts: tuple[str, ...]) -> str:
    """Return the path of the folder ``parts`` below ``root``. Raises :class:`FileMissing`, and :class:`PathRefused` if
    a component is something else than a folder, such as a link."""
    shown = "/".join(parts)
    os.close(_opened(root, parts, f"there is no folder {shown!r} to run in", f"{shown!r} is no folder to run in"))
    return os.path.join(root, *parts)


def _opened(root: Path, parts: tuple[str, ...], missing: str, refused: str) -> int:
    """Return a descriptor of the folder ``parts`` below ``root``; the caller closes it. ``missing`` and ``refused`` are
    the messages of the errors, the second one without its cause."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_folder(top, parts)
    except FileNotFoundError:
        raise FileMissing(missing) from None
    except OSError as error:
        raise PathRefused(f"{refused}: {error.strerror}") from None
    finally:
        os.close(top)


def read_below(root: Path, folders: tuple[str, ...], name: str, most: int) -> bytes:
    """Return the content of a file below ``root``; see ``Sandbox.read``."""
    shown = "/".join([*folders, name])
    missing, refused = f"there is no file {shown!r}", f"{shown!r} goes through something that is not a folder"
    folder = _opened(root, folders, missing, refused)
    try:
        return read_regular(folder, name, most, shown)
    finally:
        os.close(folder)


def write_below(root: Path, parts: tuple[str, ...], content: bytes, mode: int | None = None) -> None:
    """Write a file below ``root`` and create its folders; see ``Sandbox.write``. ``mode``: of the file; ``None``: that
    of the file it replaces, or 0644."""
    shown = "/".join(parts)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            try:
                below = open_folder(folder, (part,))
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=folder)
                below = open_folder(folder, (part,))
            os.close(folder)
            folder = below
        put_regular(folder, parts[-1], content, mode_of(folder, parts[-1]) if mode is None else mode)
    except OSError as error:
        raise PathRefused(f"{shown!r} cannot be written: {error.strerror}") from None
    finally:
        os.close(folder)


def fill(root: Path, files: Mapping[str, bytes] | Path, limits: Limits) -> None:
    """Write the files to start with into the folder ``root``."""
    for parts, content, is_executable in initial_files(files, limits):
        write_below(root, parts, content, 0o755 if is_executable else 0o644)


def copy_tree(source: Path, target: Path) -> None:
    """Copy regular files, folders and symbolic links (as links). Raises :class:`PathRefused` for anything else, which
    a copy cannot hold."""
    target.mkdir(mode=0o700)
    with os.scandir(source) as found:
        entries = list(found)
    for entry in entries:
        place = target / entry.name
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            copy_tree(Path(entry.path), place)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(entry.path), place)
        elif stat.S_ISREG(mode):
            shutil.copy2(entry.path, place, follow_symlinks=False)
        else:
            raise PathRefused(f"{entry.name!r} is a special file, which a snapshot of 'local' cannot hold: remove it")
    os.chmod(target, stat.S_IMODE(source.lstat().st_mode))
