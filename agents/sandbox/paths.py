"""Paths inside a work folder, opened without following a symbolic link that sandboxed code may have left.

``"src/queue.py"`` is a path; ``"../x"``, ``"/etc/passwd"``, ``""`` and ``"a\\0b"`` are refused.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.agents.sandbox.protocol import FileMissing, Limits, PathRefused, TooLarge

MAX_PATH_BYTES = 1024
"""Longest path."""

MAX_NAME_BYTES = 255
"""Longest name in a path: that of Linux's file systems."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: a fifo must not block


def parts_of(path: str, *, folder: bool = False) -> tuple[str, ...]:
    """Return the components of a relative path. ``folder``: whether the work folder itself, ``""``, is allowed.
    Raises :class:`PathRefused`."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise PathRefused(f"the path {path!r} is not valid Unicode") from None
    if path.startswith("/") or ".." in parts or "\0" in path or length > MAX_PATH_BYTES or not (parts or folder):
        raise PathRefused(
            f"the path {path[:100]!r} is not in the work folder: give one relative to it, without '..', "
            f"of at most {MAX_PATH_BYTES} bytes"
        )
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise PathRefused(f"the path {path[:100]!r} has a name of more than {MAX_NAME_BYTES} bytes: no file has one")
    return parts


def open_folder(root: int, parts: tuple[str, ...]) -> int:
    """Return a descriptor of the folder ``parts`` below the descriptor ``root``; the caller closes it. Raises
    :class:`FileNotFoundError`, and :class:`NotADirectoryError` for anything else than a folder, such as a link."""
    descriptor = os.dup(root)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(folder: int, name: str, most: int, shown: str) -> bytes:
    """Return the content of the regular file ``name`` in ``folder``. Raises as ``Sandbox.read`` does."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        raise FileMissing(f"there is no file {shown!r}") from None
    except OSError as error:  # ELOOP: a symbolic link; ENXIO: a socket; EACCES: unreadable for this process
        raise PathRefused(f"{shown!r} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PathRefused(f"{shown!r} is not a regular file")
    with open(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLarge(f"{shown!r} has more than {most} bytes: raise limits.read_bytes")
    return content


def mode_of(folder: int, name: str) -> int:
    """Return the mode of the regular file ``name`` in ``folder``; 0644 if there is none."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0o644
    return stat.S_IMODE(mode) & 0o777 if stat.S_ISREG(mode) else 0o644


def put_regular(folder: int, name: str, content: bytes, mode: int, owner: int | None = None) -> None:
    """Replace whatever is at ``name`` in ``folder`` by a file, which appears whole. ``owner``: its user and group.
    A folder there raises :class:`IsADirectoryError`."""
    temporary = f".headrace-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                os.fchown(descriptor, owner, owner)
            os.fchmod(descriptor, mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


def initial_files(files: Mapping[str, bytes] | Path, limits: Limits) -> Iterator[tuple[tuple[str, ...], bytes, bool]]:
    """Yield path, content and whether it is executable, of the files to start with, in order of their paths.

    Raises :class:`PathRefused` for bad paths, and for links and special files in a folder; :class:`TooLarge` if there
    are more than ``limits.disk_files`` files or ``limits.disk_bytes`` bytes.
    """
    total = 0
    source = _in_folder(files, limits.disk_bytes) if isinstance(files, Path) else _in_mapping(files)
    for count, (parts, content, is_executable) in enumerate(source, start=1):
        total += len(content)
        if count > limits.disk_files or total > limits.disk_bytes:
            raise TooLarge(
                f"the files to start with are more than limits.disk_files ({limits.disk_files}) or "
                f"limits.disk_bytes ({limits.disk_bytes}): raise these"
            )
        yield parts, content, is_executable


def _in_mapping(files: Mapping[str, bytes]) -> Iterator[tuple[tuple[str, ...], bytes, bool]]:
    by_parts = {parts_of(path): content for path, content in files.items()}
    for parts in sorted(by_parts):
        yield parts, bytes(by_parts[parts]), False


def _in_folder(folder: Path, most: int) -> Iterator[tuple[tuple[str, ...], bytes, bool]]:
    if not folder.is_dir():
        raise FileMissing(f"there is no folder {str(folder)!r} to start with")
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *(entry for entry in folders if os.path.islink(os.path.join(place, entry)))]):
            path = Path(place, name)
            parts = path.relative_to(folder).parts
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise PathRefused(f"{str(path)!r} is neither a regular file nor a folder: start without it")
            if status.st_size > most:
                raise TooLarge(f"{str(path)!r} has more than {most} bytes: raise limits.disk_bytes")
            yield parts, path.read_bytes(), bool(status.st_mode & 0o100)
