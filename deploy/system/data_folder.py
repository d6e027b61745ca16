"""The data folder: what a stack keeps there is its owner's alone, folders 0700, files 0600, whatever the umask is.

Kafka's log and ClickHouse's tables hold what users said, the stack's own files how to reach everything.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.errors import StackError

OURS = frozenset(
    {
        *("kafka", "clickhouse", "faust", "objects", "checkpoints", "weights", "logs", "demo"),
        *("clickhouse-secrets", "keys"),
        *("stack.json", "stack.new", "stack.lock", "ports.json", "reward.png"),
    }
)
"""What a stack makes in its data folder. What else lies there is somebody's own and stays as it is."""

_UMASK = 0o077
_ROOM_BYTES = 16 * 1024**2
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """What this process and its children make from now on is readable by its owner alone."""
    os.umask(_UMASK)


@contextmanager
def private_files() -> Iterator[None]:
    """The same inside the block."""
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(data: Path) -> None:
    """Make the data folder, for its owner alone; one that exists stays as it is.

    Raises :class:`StackError` where it cannot be made or is no folder that can be written to.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(_unusable(data, error.strerror or str(error))) from error
    if not os.access(data, os.W_OK | os.X_OK):
        raise StackError(_unusable(data, "it cannot be written to"))


def tighten(data: Path) -> int:
    """Take the rights of group and others from what a stack keeps in ``data``; returns of how many files and folders.

    The data folder itself is tightened where nothing but a stack's own lies in it. Links are not followed, and what
    belongs to another user stays as it is.
    """
    held = list(data.iterdir())
    ours = [path for path in held if path.name in OURS or path.name.startswith(".headrace")]
    whole = [data] if len(ours) == len(held) else []
    return sum(_tightened(path) for root in ours for path in _tree(root)) + sum(map(_tightened, whole))


def full_disk(data: Path) -> str | None:
    """That the disk of ``data`` is full, in a sentence; ``None`` where there is room."""
    usage = shutil.disk_usage(data)
    if usage.free >= min(_ROOM_BYTES, usage.total // 64):
        return None
    return f"The disk of {data} is full, {usage.free / 1024**2:.1f} MiB are free: make room"


def _tree(root: Path) -> Iterator[Path]:
    yield root
    if root.is_dir() and not root.is_symlink():
        for folder, folders, files in os.walk(root):
            yield from (Path(folder, name) for name in (*folders, *files))


def _tightened(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & _OTHERS:
            return False
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except (FileNotFoundError, PermissionError):  # gone meanwhile; somebody else's
        return False
    return True


def _unusable(data: Path, why: str) -> str:
    return (
        f"The data folder {data} (HEADRACE_DATA, --data) cannot be used: {why}. Name a folder that this user may "
        "write to, with --data."
    )


def command_on(command: str, data: Path) -> str:
    """``headrace COMMAND`` for the stack on ``data``, as a person can type it in this folder.

    The folder is named unless it is the one that commands take by themselves.
    """
    usual = Path.cwd() / ".headrace"
    return f"headrace {command}" + ("" if data.absolute() == usual else f" --data {shlex.quote(str(data))}")
