"""The merged view of overlayfs layers, read and written while no command runs, as the kernel would show it.

Layers are folders, the topmost first. In a layer, a character device 0:0 hides what lies below it (a whiteout), and a
folder with the attribute ``user.overlay.opaque`` hides the lower folders of its name. See the kernel's
Documentation/filesystems/overlayfs.rst; sandboxes are mounted without redirects, so there is nothing else.

    [".../upper", ".../layers/9f86d081…"]
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from headrace.agents.sandbox.listing import OPAQUE, is_opaque
from headrace.agents.sandbox.paths import put_regular, read_regular
from headrace.agents.sandbox.protocol import FileMissing, PathRefused

Stack = Sequence[str]
"""The real folders that make up one merged folder, the topmost first."""


def entry_of(stack: Stack, name: str) -> str | None:
    """Return the real path of the topmost entry ``name`` of a merged folder; ``None`` if there is none."""
    for folder in stack:
        path = os.path.join(folder, name)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        return None if _is_whiteout(status) else path
    return None


def below(stack: Stack, name: str) -> list[str] | None:
    """Return the stack of the merged folder ``name``; ``None`` if there is nothing of that name. Raises
    :class:`NotADirectoryError` if it is something else, a symbolic link included."""
    found: list[str] = []
    for folder in stack:
        path = os.path.join(folder, name)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            if found or _is_whiteout(status):
                break
            raise NotADirectoryError(name)
        found.append(path)
        if is_opaque(path):
            break
    return found or None


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def folder_at(layers: Stack, parts: Sequence[str]) -> list[str] | None:
    """Return the stack of the folder ``parts``; ``None`` if it is missing. Raises :class:`PathRefused` if a component
    is no folder."""
    stack: list[str] | None = list(layers)
    for part in parts:
        assert stack is not None
        try:
            stack = below(stack, part)
        except NotADirectoryError:
            raise PathRefused(f"{'/'.join(parts)!r} goes through {part!r}, which is not a folder") from None
        if stack is None:
            return None
    return stack


def read_merged(layers: Stack, parts: Sequence[str], most: int) -> bytes:
    """Return the content of a regular file; see ``Sandbox.read``."""
    shown = "/".join(parts)
    try:
        stack = folder_at(layers, parts[:-1])
        path = None if stack is None else entry_of(stack, parts[-1])
        if path is None:
            raise FileMissing(f"there is no file {shown!r}")
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:  # sandboxed code has closed a folder, and this process is not root
        raise PathRefused(f"{shown!r} is in a folder that is closed") from None
    try:
        return read_regular(folder, parts[-1], most, shown)
    finally:
        os.close(folder)


def write_merged(
    layers: Stack, parts: Sequence[str], content: bytes, owner: int | None, mode: int | None = None
) -> None:
    """Write a file into the topmost layer, with its folders; see ``Sandbox.write``. ``owner``: of what is created.
    ``mode``: of the file; ``None``: that of the file it replaces, or 0644."""
    try:
        _write_merged(layers, parts, content, owner, mode)
    except PermissionError:  # sandboxed code has closed a folder, and this process is not root
        raise PathRefused(f"{'/'.join(parts)!r} is in a folder that is closed") from None


def _write_merged(layers: Stack, parts: Sequence[str], content: bytes, owner: int | None, mode: int | None) -> None:
    shown = "/".join(parts)
    stack, upper = list(layers), layers[0]
    for part in parts[:-1]:
        found = folder_at(stack, (part,))
        upper = os.path.join(upper, part)
        if found is None or found[0] != upper:
            _make_folder(upper, found, owner)
            found = [upper, *(found or ())]
        stack = found
    present = entry_of(stack, parts[-1])
    status = None if present is None else os.lstat(present)
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise PathRefused(f"{shown!r} is a folder")
    if mode is None:
        mode = stat.S_IMODE(status.st_mode) & 0o777 if status is not None and stat.S_ISREG(status.st_mode) else 0o644
    folder = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        put_regular(folder, parts[-1], content, mode, owner)
    except OSError as error:
        raise PathRefused(f"{shown!r} cannot be written: {error.strerror}") from None
    finally:
        os.close(folder)


def _make_folder(upper: str, lower: Stack | None, owner: int | None) -> None:
    """Create the folder ``upper`` over ``lower``, or opaque in the place of a whiteout."""
    mode = 0o755 if lower is None else stat.S_IMODE(os.lstat(lower[0]).st_mode)
    was_whiteout = os.path.lexists(upper)
    if was_whiteout:
        os.unlink(upper)
    os.mkdir(upper, 0o700)
    if was_whiteout:
        os.setxattr(upper, OPAQUE, b"y")
    if owner is not None:
        os.chown(upper, owner, owner)
    os.chmod(upper, mode)


def merge(layers: Stack, target: Path, owner: int | None) -> None:
    """Fill the empty folder ``target`` with the merged view of frozen ``layers``, by hard links."""
    pending = [(list(layers), os.fspath(target))]
    while pending:
        stack, place = pending.pop()
        for name in sorted({name for folder in stack for name in os.listdir(folder)}):
            path, copy = entry_of(stack, name), os.path.join(place, name)
            if path is None:
                continue
            status = os.lstat(path)
            if not stat.S_ISDIR(status.st_mode):
                os.link(path, copy, follow_symlinks=False)
                continue
            os.mkdir(copy, 0o700)
            if owner is not None:
                os.chown(copy, owner, owner)
            os.chmod(copy, stat.S_IMODE(status.st_mode))
            pending.append((below(stack, name) or [], copy))
