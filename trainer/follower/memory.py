"""The state that a follower keeps across its own restarts, in a private file of its cache folder.

The log is not used for it: anyone with write access to ``alerts`` or ``applied`` could make it refuse valid versions.
Without the file the follower tries a bad version once more, detects it and refuses it again.
"""

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from headrace.trainer.follower.versions import KnownVersions

logger = logging.getLogger(__name__)


def memory_file(folder: Path, run: str, engine: str) -> Path:
    """Returns the file for ``engine`` and ``run``; several followers may share a cache folder."""
    return folder / f"follower-{hashlib.sha256(json.dumps([run, engine]).encode()).hexdigest()[:16]}.json"


def read_memory(folder: Path, run: str, engine: str) -> KnownVersions:
    """Returns the refused, absent and last good versions; an empty state if the file is missing or unreadable."""
    file = memory_file(folder, run, engine)
    try:
        held = json.loads(file.read_bytes())
        good = held["good"]
        if good is not None and (not isinstance(good, int) or isinstance(good, bool)):
            raise ValueError(f"good is {good!r}")
        return KnownVersions(refused=_hashes(held["refused"]), absent=_hashes(held["absent"]), good=good)
    except FileNotFoundError:
        return KnownVersions()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        logger.warning("%s cannot be read (%r): versions that were refused before are tried again", file, error)
        return KnownVersions()


def write_memory(folder: Path, run: str, engine: str, versions: KnownVersions) -> None:
    """Store ``versions`` for :func:`read_memory`: the file is replaced atomically, with mode 0600.

    Raises ``OSError`` if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = memory_file(folder, run, engine)
    held = {"refused": sorted(versions.refused), "absent": sorted(versions.absent), "good": versions.good}
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            json.dump(held, made)
            made.flush()
            os.fsync(made.fileno())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _hashes(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("hashes are a list of strings")
    return frozenset(value)
