"""A deterministic listing of a folder, its digest and its size; nothing in it is followed or opened but regular files.

["src/queue.py", "file", 420, 812, "9f86d081…"]
"""

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.agents.sandbox.protocol import Limits

OPAQUE = "user.overlay.opaque"
"""Attribute by which overlayfs marks a folder that hides the folders of its name in lower layers."""

BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder contains."""

    sha256: str
    """Digest of the sorted list of entries: path, kind, mode, size, content or target. Times and owners are left out,
    so that the same work has the same digest."""
    bytes: int
    """Sum of the sizes of its regular files."""
    entries: int
    """Number of entries below the folder."""


def list_folder(folder: Path) -> Listing:
    """Return the listing of ``folder``, which nothing may change meanwhile."""
    digest = hashlib.sha256()
    total = entries = 0
    pending = [(folder, "")]
    while pending:
        place, prefix = pending.pop()
        with os.scandir(place) as found:
            below = sorted(found, key=lambda entry: entry.name)
        for entry in below:
            entries += 1
            path = prefix + entry.name
            status = entry.stat(follow_symlinks=False)
            row: list[Any] = [os.fsencode(path).hex(), *_described(entry.path, status)]
            if stat.S_ISREG(status.st_mode):
                total += status.st_size
            elif stat.S_ISDIR(status.st_mode):
                pending.append((Path(entry.path), path + "/"))
            digest.update(json.dumps(row).encode() + b"\n")
    return Listing(digest.hexdigest(), total, entries)


def _described(path: str, status: os.stat_result) -> list[Any]:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return ["file", mode, status.st_size, _content_digest(path)]
    if stat.S_ISDIR(status.st_mode):
        return ["folder", mode, is_opaque(path)]
    if stat.S_ISLNK(status.st_mode):
        return ["link", os.fsencode(os.readlink(path)).hex()]
    return ["special", stat.S_IFMT(status.st_mode), mode, status.st_rdev]


def _content_digest(path: str) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def is_opaque(path: str) -> bool:
    """Return whether overlayfs marked the folder ``path`` as hiding lower folders of its name."""
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:  # the attribute is not set, or the file system has none
        return False


@dataclass(frozen=True, slots=True)
class Usage:
    """What a folder takes of the disk."""

    bytes: int = 0
    """Bytes of its files: what is allocated for each, or its size if that is more. (Holes are read when a snapshot is
    named, and a copy may fill them.)"""
    entries: int = 0
    """Number of entries below it."""
    is_partial: bool = False
    """Whether a folder in it could not be read: it is closed for this process, or nested beyond the longest path."""


def usage(folder: Path, most: Usage | None = None) -> Usage:
    """Count what ``folder`` takes. ``most``: where to stop counting. Sandboxed code may change the folder meanwhile;
    entries that vanish count nothing."""
    total = entries = 0
    is_partial = False
    pending = [os.fspath(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                for entry in found:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    entries += 1
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
                    else:
                        total += max(status.st_size, 512 * status.st_blocks)
                    if most is not None and (total > most.bytes or entries > most.entries):
                        return Usage(total, entries, is_partial)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            is_partial = True
    return Usage(total, entries, is_partial)


def exceeds(folder: Path, limits: Limits, already: Usage = Usage(), beside: int = 0) -> bool:
    """Return whether ``folder`` takes more than ``limits.disk_bytes`` or ``limits.disk_files``, or cannot be counted.

    ``already``: what it took when it had exceeded them before; less than that is allowed, so that a command can remove
    files. ``beside``: bytes that count too although they are not in the folder."""
    most = Usage(max(limits.disk_bytes, already.bytes), max(limits.disk_files, already.entries))
    found = usage(folder, most)
    return (
        found.bytes + beside > most.bytes
        or found.entries > most.entries
        or (found.is_partial and not already.is_partial)
    )
