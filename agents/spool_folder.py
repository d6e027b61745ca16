"""The folder of a spool: only its user reads or writes it, and each set of segment files has one owner.

    ~/.local/state/headrace/spool/          0700
        019…-a1.lock                        0600, locked (flock) while the process that wrote the set lives
        019…-a1-000000.spool                0600, a segment: see spool_frames
        019…-a1-000001.spool

A *set* is what one sender wrote. The kernel releases the lock when its process ends, however it ends; then another
process may adopt the set. A lock file is removed together with the last segment of its set, so a process that obtains a
lock checks that the file still has its name. All names are opened relative to the folder, and links are not followed.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.agents.spool_frames import HEADER_BYTES, cluster_of
from headrace.schemas.ids import uuid7

STATE_VARIABLE: Final = "XDG_STATE_HOME"
"""Environment variable with the folder for the state of a user's programs; the default is ``~/.local/state``."""

ATTEMPTS: Final = 10
"""Attempts to lock a set of one's own: a process that adopts sets may be faster, and removes one without segments."""

MAX_FILES: Final = 100_000
"""Most files in the folder that are looked at."""

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = ".lock"
_LOCK_NAME = re.compile(r"([0-9a-f-]{36})\.lock")
_SEGMENT = re.compile(r"([0-9a-f-]{36})-(\d{6,12})\.spool")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class SpoolUnusable(OSError):
    """The spool cannot be used; the message says why and what to do."""


def default_folder() -> Path | None:
    """Return the spool's folder of this user, ``$XDG_STATE_HOME/headrace/spool`` or
    ``~/.local/state/headrace/spool``; ``None`` if there is no home directory."""
    state = os.environ.get(STATE_VARIABLE, "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    return Path(state, "headrace", "spool") if os.path.isabs(state) else None


class SpoolFolder:
    """An open folder. Methods raise ``OSError`` as the system does, and :class:`SpoolUnusable` for what is refused."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Open ``path``; ``create`` it if it is missing, with mode 0700.

        Raises :class:`SpoolUnusable` if it is not a folder of this user or others can write to it, and
        ``FileNotFoundError`` if it is missing.
        """
        self.path = path
        try:
            if create:
                os.makedirs(path, mode=0o700, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except ValueError as error:
            raise SpoolUnusable(f"{str(path)!r} is no path ({error}): pass a folder as spool_folder") from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
                raise SpoolUnusable(f"{path} is a link or a file: pass a folder as spool_folder") from error
            raise
        found = os.fstat(self._fd)
        problem, remedy = None, "pass another folder as spool_folder"
        if found.st_uid != os.geteuid():
            problem = f"belongs to user {found.st_uid} and not to this process's user {os.geteuid()}"
        elif found.st_mode & _OTHERS_WRITE:
            problem = f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
            if not found.st_mode & stat.S_ISVTX:  # a folder for all users, such as /tmp, must stay one
                remedy = f"run `chmod 700 {path}`, or {remedy}"
        if problem:
            self.close()
            raise SpoolUnusable(f"the folder {path} {problem}, so its events cannot be trusted: {remedy}")

    def close(self) -> None:
        """Close the folder."""
        os.close(self._fd)

    def create(self, name: str) -> int:
        """Create a file with mode 0600 and return its descriptor, for reading and writing."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self._fd)

    def open(self, name: str, *, create: bool = False) -> int:
        """Open a file for reading, or for writing too, and ``create`` it if it is missing; return its descriptor. Raise
        :class:`SpoolUnusable` if it is not a file of this user that others cannot write to."""
        flags = os.O_NONBLOCK | _OPEN | (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY)
        try:
            fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise SpoolUnusable(f"{self.path / name} is a link, which is not followed: remove it") from error
            raise
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE:
            return fd
        os.close(fd)
        raise SpoolUnusable(f"{self.path / name} is not a file of this user that only this user can write: remove it")

    def remove(self, name: str) -> None:
        """Remove a file; it is not an error if it is missing."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Make the names of new files durable."""
        os.fsync(self._fd)

    def names(self) -> list[str]:
        """Return the names of the files in the folder, at most ``MAX_FILES`` of them, sorted."""
        with os.scandir(self._fd) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MAX_FILES), strict=False))

    def total_bytes(self) -> int:
        """Return the size of all files in the folder, in bytes."""
        return sum(self.size_of(name) for name in self.names())

    def size_of(self, name: str) -> int:
        """Return the size of a file in bytes; 0 if it is missing."""
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        return 0

    def is_named(self, fd: int, name: str) -> bool:
        """Return whether ``name`` is still the file that is open as ``fd``."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        return False


class SegmentSet:
    """A set of segments that this process owns: its lock is held until :meth:`release`."""

    def __init__(self, folder: SpoolFolder, id: str, lock: int) -> None:
        self.folder = folder
        self.id = id
        """UUIDv7, which begins with the time, so that sets sort by age."""
        self._lock = lock

    def segment_name(self, number: int) -> str:
        """Return the file name of the segment ``number`` of this set."""
        return f"{self.id}-{number:06d}.spool"

    def release(self, *, is_empty: bool) -> None:
        """Give up the set; remove its lock file if it ``is_empty``."""
        try:
            if is_empty:
                self.folder.remove(self.id + _LOCK)
        finally:
            self.forget()

    def forget(self) -> None:
        """Close the lock without changing it. A forked child calls this: the lock is its parent's as long as the parent
        holds the same open file, and would outlive the parent in the child."""
        os.close(self._lock)


def new_set(folder: SpoolFolder) -> SegmentSet:
    """Create a set in ``folder`` and lock it."""
    for _ in range(ATTEMPTS):
        id = uuid7()
        lock = folder.create(id + _LOCK)
        try:
            if _is_locked(folder, lock, id):
                return SegmentSet(folder, id, lock)
        except OSError:  # the next attempt creates another
            folder.remove(id + _LOCK)
            raise
    raise SpoolUnusable(f"no file in {folder.path} could be locked in {ATTEMPTS} attempts: does it support flock?")


def abandoned_sets(
    folder: SpoolFolder, cluster: bytes, unreadable: Collection[str], report: Callable[[str], None]
) -> Iterator[tuple[SegmentSet, list[str]]]:
    """Yield the sets of ended processes for ``cluster``, oldest first, locked, with the names of their segments in
    order, except those with an ID in ``unreadable``. The caller releases each.

    A set is of another cluster if any of its segments is. A lock without segments is removed. ``report`` is called with
    a sentence for each file that cannot be used.
    """
    for id, names in sorted(segments_in(folder).items()):
        if id in unreadable:
            continue
        try:
            if any(_cluster(folder, name) not in (cluster, None) for name in names):
                continue
            lock = folder.open(id + _LOCK, create=True)
        except FileNotFoundError:  # another process has adopted the set and sent this segment
            continue
        except OSError as error:
            report(f"{folder.path / id}: {error}")
            continue
        if not _is_locked(folder, lock, id):
            continue
        owned = SegmentSet(folder, id, lock)
        # Until it was locked, its owner may have written segments, and another process may have removed some.
        try:
            present = segments_in(folder).get(id)
        except OSError:
            owned.release(is_empty=False)
            raise
        if present:
            yield owned, present
        else:
            owned.release(is_empty=True)


def segments_in(folder: SpoolFolder) -> dict[str, list[str]]:
    """Return the names of the segments of each set in order; none for a set that has only its lock."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in folder.names():
        if segment := _SEGMENT.fullmatch(name):
            found.setdefault(segment[1], []).append((int(segment[2]), name))
        elif lock := _LOCK_NAME.fullmatch(name):
            found.setdefault(lock[1], [])
    return {id: [name for _, name in sorted(segments)] for id, segments in found.items()}


def _cluster(folder: SpoolFolder, name: str) -> bytes | None:
    fd = folder.open(name)
    try:
        return cluster_of(os.pread(fd, HEADER_BYTES, 0))
    finally:
        os.close(fd)


def _is_locked(folder: SpoolFolder, lock: int, id: str) -> bool:
    """Lock the open file ``lock``; close it and return ``False`` if another process holds or has removed it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.is_named(lock, id + _LOCK):
            return True
    except BlockingIOError:
        pass
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return False
