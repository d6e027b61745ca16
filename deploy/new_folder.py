"""A folder that a command makes: it appears complete or not at all, and what exists is never overwritten."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.errors import StackError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a folder beside ``out`` to write to, and rename it to ``out`` when the block ends without an error.

    Raises :class:`StackError` if ``out`` has contents; a folder that cannot be written to fails before the block.
    """
    if out.exists() and any(out.iterdir()):
        raise StackError(f"--out {out} is not empty: name a new folder, existing ones are never overwritten")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    if out.exists():
        out.rmdir()
    part.rename(out)
