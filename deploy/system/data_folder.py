"""The data folder: only its owner has access to a stack's files (folders 0700, files 0600), whatever the umask.

Kafka's log and ClickHouse's tables contain users' texts; the stack's own files contain addresses and keys.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.errors import StackError

STACK_FILES = frozenset(
    {
        *("kafka", "clickhouse", "faust", "objects", "checkpoints", "weights", "logs", "demo"),
        *("clickhouse-secrets", "keys"),
        *("stack.json", "stack.new", "stack.lock", "ports.json", "run", "run.new", "reward.png"),
    }
)
"""What a stack creates in its data folder. Other files there belong to the user and are not changed."""

_UMASK = 0o077
_MIN_FREE_BYTES = 16 * 1024**2
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """Set the umask so that files created by this process and its children are accessible only to their owner."""
    os.umask(_UMASK)


@contextmanager
def private_files() -> Iterator[None]:
    """Do the same as :func:`keep_files_private` inside the block."""
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(data: Path) -> None:
    """Create the data folder with mode 0700; an existing folder is not changed.

    Raises :class:`StackError` if it cannot be created or written to.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(_unusable(data, error.strerror or str(error))) from error
    if not os.access(data, os.W_OK | os.X_OK):
        raise StackError(_unusable(data, "it cannot be written to"))


def tighten(data: Path) -> int:
    """Remove the permissions of group and others from a stack's files in ``data``; returns the number of changes.

    The data folder itself is changed if it contains nothing but a stack's files. Links are not followed, and files of
    other users are not changed.
    """
    entries = list(data.iterdir())
    own = [path for path in entries if path.name in STACK_FILES or path.name.startswith(".headrace")]
    whole = [data] if len(own) == len(entries) else []
    return sum(_tightened(path) for root in own for path in _tree(root)) + sum(map(_tightened, whole))


def full_disk(data: Path) -> str | None:
    """Returns a sentence if the disk of ``data`` is full; otherwise ``None``."""
    usage = shutil.disk_usage(data)
    if usage.free >= min(_MIN_FREE_BYTES, usage.total // 64):
        return None
    return f"The disk of {data} is full, {usage.free / 1024**2:.1f} MiB are free: free some space"


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
    except (FileNotFoundError, PermissionError):  # Deleted meanwhile, or owned by another user.
        return False
    return True


def _unusable(data: Path, why: str) -> str:
    return (
        f"The data folder {data} (HEADRACE_DATA, --data) cannot be used: {why}. Use --data to specify a folder that "
        "this user can write to."
    )


def command_on(command: str, data: Path) -> str:
    """Returns ``headrace COMMAND`` for the stack on ``data``, to be run in the current folder.

    It contains --data unless ``data`` is the default.
    """
    default = Path.cwd() / ".headrace"
    return f"headrace {command}" + ("" if data.absolute() == default else f" --data {shlex.quote(str(data))}")
