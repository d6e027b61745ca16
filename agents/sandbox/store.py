"""The folder in which local providers keep snapshots and running sandboxes; it outlives the processes that use it.

store/layers/<sha256>/             frozen files, never changed
store/snapshots/<id>.json          {"id": "3f2a…", "parent": null, "layers": ["3f2a…"], "bytes": 812, …}
store/sandboxes/<process>/<id>/    work folders; those of processes that ended are removed at the next start
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.agents.sandbox.listing import Listing
from headrace.agents.sandbox.protocol import Snapshot, SnapshotKind, SnapshotUnknown, StoreFull

ID_CHARACTERS = frozenset("0123456789abcdef")

MAX_ID = 64
"""Longest id: a SHA-256."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a store may become."""

    max_bytes: int = 16 * 2**30
    """Bytes of all snapshots together."""
    max_snapshots: int = 100_000
    """Number of snapshots."""
    min_free_bytes: int = 2**30
    """Bytes that stay free on the disk."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot as the store describes it."""

    id: str
    """Its id and digest: of its own listing and its parent's id."""
    provider: str
    """Name of the provider that can restore it."""
    kind: str
    """A :class:`~headrace.agents.sandbox.protocol.SnapshotKind`."""
    parent: str | None
    """Id of the snapshot before it."""
    layers: tuple[str, ...]
    """Names of its layers, the lowest first."""
    bytes: int
    """Bytes that it added to the store."""

    def snapshot(self, ms: float = 0.0) -> Snapshot:
        """Return the reference to it. ``ms``: milliseconds that it took."""
        return Snapshot(self.id, SnapshotKind(self.kind), self.id, self.parent, ms)


class Store:
    """One store. Processes may share it: everything appears in it whole, and removal waits for those that add."""

    def __init__(self, root: Path, bounds: Bounds = Bounds(), owner: int | None = None) -> None:
        """Create ``root`` if it is missing. ``owner``: user and group of its folders, if not this process's.

        Removes the work folders of processes that ended."""
        self.root = root.absolute()
        self.bounds = bounds
        self.owner = owner
        self._folder(self.root)
        for name in ("layers", "snapshots", "sandboxes"):
            self._folder(self.root / name)
        self.remove_abandoned()
        with self._locked(fcntl.LOCK_EX):
            self.process = self._folder(self.root / "sandboxes" / uuid.uuid4().hex)
            self._alive = os.open(self.process / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._alive, fcntl.LOCK_EX)
        self._measure()

    def _folder(self, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)
        return path

    def layer(self, name: str) -> Path:
        """Return the folder of a layer."""
        return self.root / "layers" / name

    def new_sandbox(self, layers: Sequence[str], *folders: str) -> Path:
        """Return a new folder of a sandbox with ``folders`` in it; ``layers`` are kept while it exists."""
        path = self._folder(self.process / uuid.uuid4().hex[:16])
        self.renew(path, layers, *folders)
        return path

    def renew(self, sandbox: Path, layers: Sequence[str], *folders: str) -> None:
        """Create the missing ones of ``folders`` in a sandbox's folder, which uses ``layers`` from now on."""
        temporary = sandbox / "layers.new"
        temporary.write_text(json.dumps(list(layers)))
        os.rename(temporary, sandbox / "layers.json")
        for name in folders:
            self._folder(sandbox / name)

    def new_layer(self) -> Path:
        """Return a new folder to be filled and given to :meth:`add`."""
        return self._folder(self.process / f"layer-{uuid.uuid4().hex[:16]}")

    def manifest(self, snapshot_id: str) -> Manifest:
        """Return the description of a snapshot. Raises :class:`SnapshotUnknown`."""
        if not snapshot_id or len(snapshot_id) > MAX_ID or set(snapshot_id) - ID_CHARACTERS:
            raise SnapshotUnknown(f"{snapshot_id[:80]!r} is no id of a snapshot of {self.root}")
        try:
            fields = json.loads((self.root / "snapshots" / f"{snapshot_id}.json").read_bytes())
        except FileNotFoundError:
            raise SnapshotUnknown(
                f"the store {self.root} has no snapshot {snapshot_id}: it was removed, or taken with another store"
            ) from None
        except ValueError as error:
            raise _damaged(self.root, snapshot_id) from error
        try:
            found = Manifest(**fields | {"layers": tuple(fields["layers"])})
        except (TypeError, KeyError) as error:
            raise _damaged(self.root, snapshot_id) from error
        if found.id != snapshot_id or not found.layers or not isinstance(found.bytes, int):
            raise _damaged(self.root, snapshot_id)
        return found

    def find(self, snapshot_id: str, provider: str) -> Manifest:
        """Return :meth:`manifest`, of a snapshot that ``provider`` took and whose layers are there. Raises
        :class:`SnapshotUnknown`."""
        found = self.manifest(snapshot_id)
        if found.provider != provider:
            raise SnapshotUnknown(
                f"the snapshot {snapshot_id} belongs to the provider {found.provider}: restore it there"
            )
        if not self._has_layers(found):
            raise SnapshotUnknown(f"the store {self.root} has lost layers of the snapshot {snapshot_id}: take it again")
        return found

    def has(self, snapshot_id: str) -> bool:
        """Return whether the store has the snapshot, undamaged as far as can be told without reading its files."""
        try:
            return self._has_layers(self.manifest(snapshot_id))
        except SnapshotUnknown:
            return False

    def _has_layers(self, manifest: Manifest) -> bool:
        return all(not set(name) - ID_CHARACTERS and self.layer(name).is_dir() for name in manifest.layers)

    def add(self, content: Path, listing: Listing, manifest: Manifest) -> None:
        """Move the folder ``content`` to the layer that ``manifest`` names last, unless it is there, and publish the
        snapshot. Raises :class:`StoreFull`, leaving ``content`` where it is."""
        with self.adding():
            self._check(listing.bytes)
            try:
                os.rename(content, self.layer(manifest.layers[-1]))
                self._bytes += listing.bytes
            except OSError:
                if not self.layer(manifest.layers[-1]).is_dir():
                    raise
                remove_folder(content)  # another sandbox has made the same layer
            self._publish(manifest)

    def _publish(self, manifest: Manifest) -> None:
        place = self.root / "snapshots" / f"{manifest.id}.json"
        if self.has(manifest.id):
            return
        temporary = self.process / f"manifest-{uuid.uuid4().hex[:16]}"
        temporary.write_text(json.dumps(asdict(manifest)))
        os.rename(temporary, place)
        self._snapshots += 1

    def _check(self, more: int) -> None:
        if (self._snapshots + 1) % 64 == 0:  # other processes add to the store too
            self._measure()
        bounds, disk = self.bounds, os.statvfs(self.root)
        free = disk.f_bavail * disk.f_frsize
        mend = "remove snapshots that are no longer needed (`headrace sandbox --remove-unreferenced`), or raise it"
        if self._bytes + more > bounds.max_bytes:
            raise StoreFull(f"the store {self.root} would exceed max_bytes ({bounds.max_bytes}): {mend}")
        if self._snapshots + 1 > bounds.max_snapshots:
            raise StoreFull(f"the store {self.root} has max_snapshots ({bounds.max_snapshots}): {mend}")
        if free - more < bounds.min_free_bytes:
            raise StoreFull(
                f"{free} bytes are free on the disk of {self.root}, fewer than min_free_bytes "
                f"({bounds.min_free_bytes}) and the snapshot: free some, or choose another folder"
            )

    def _measure(self) -> None:
        self._bytes = self._snapshots = 0
        for found in self.snapshots():
            self._bytes += found.bytes
            self._snapshots += 1

    def snapshots(self) -> Iterator[Manifest]:
        """Yield all snapshots whose description can be read: of a damaged one, :meth:`manifest` says so."""
        for snapshot_id in self._ids():
            with contextlib.suppress(SnapshotUnknown):  # damaged, or removed by another process meanwhile
                yield self.manifest(snapshot_id)

    def _ids(self) -> list[str]:
        with os.scandir(self.root / "snapshots") as entries:
            return [entry.name.removesuffix(".json") for entry in entries]

    def remove_unreferenced(self, keep: Collection[str]) -> int:
        """Remove all snapshots but ``keep``, damaged ones too, and layers that neither these nor running sandboxes use.
        Return the number of layers removed."""
        removed = 0
        with self._locked(fcntl.LOCK_EX):
            used: set[str] = set()
            for manifest in self.snapshots():
                if manifest.id in keep:
                    used.update(manifest.layers)
            for snapshot_id in self._ids():
                if snapshot_id not in keep:
                    (self.root / "snapshots" / f"{snapshot_id}.json").unlink()
            for uses in (self.root / "sandboxes").glob("*/*/layers.json"):
                with contextlib.suppress(FileNotFoundError):  # the sandbox was stopped meanwhile
                    used.update(json.loads(uses.read_bytes()))
            for layer in list((self.root / "layers").iterdir()):
                if layer.name not in used:
                    remove_folder(layer)
                    removed += 1
        self._measure()
        return removed

    def remove_abandoned(self) -> int:
        """Remove the work folders of processes that ended; return how many such processes there were."""
        removed = 0
        with self._locked(fcntl.LOCK_EX):
            for process in list((self.root / "sandboxes").iterdir()):
                if not _is_locked(process / "alive"):
                    remove_folder(process)
                    removed += 1
        return removed

    def close(self) -> None:
        """Remove the work folders of this process. Snapshots stay."""
        remove_folder(self.process)
        os.close(self._alive)

    def adding(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is removed from the store, from finding a snapshot to using it."""
        return self._locked(fcntl.LOCK_SH)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        # Opened each time: threads that shared one open file would share its lock.
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)


def _damaged(root: Path, snapshot_id: str) -> SnapshotUnknown:
    return SnapshotUnknown(
        f"the description of the snapshot {snapshot_id} in {root} is damaged, as after a power failure: take it again"
    )


def _is_locked(path: Path) -> bool:
    """Return whether a process that runs holds the lock of the file ``path``."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` with everything in it, also what sandboxed code made unreadable or nested a thousand deep;
    nothing if it is missing. Nothing may change it meanwhile."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        make_readable(folder)
        subprocess.run(["rm", "-rf", "--", folder], check=True, stdin=subprocess.DEVNULL)


def make_readable(folder: Path) -> None:
    """Give the owner all rights on what is below ``folder``, which nothing may change meanwhile."""
    subprocess.run(["chmod", "-R", "u+rwX", "--", folder], check=True, stdin=subprocess.DEVNULL)
