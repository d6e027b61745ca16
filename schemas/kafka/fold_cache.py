"""Cache for the state of a fold over topics: one file in the user's cache folder, with the fold's bookmarks.

A stored fold is derived from the log and only saves time: without it, the log is read again. It is bound to the cluster
and to the code of the fold and has a checksum. The file is replaced atomically, so of two writers the last one wins.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import zstandard

from headrace.schemas.kafka.bookmarks import Bookmark, Marks
from headrace.schemas.model import Record

MAX_BYTES = 1024**3
"""Largest fold that is stored, in bytes before compression: the ledger of about twenty million trajectories."""

MAX_FILES = 16
"""Largest number of stored folds, over all clusters; the oldest are deleted."""

_SUFFIX = ".fold"


class UnusableFoldError(Exception):
    """A stored fold cannot be used, for the reason in the message; the log has to be read from the start."""


@dataclass(frozen=True, slots=True)
class FoldIdentity:
    """Identity of a fold. Two folds with the same identity and equal bookmarks are equal."""

    name: str
    """Name of the fold: ``ledger``."""
    cluster: str
    """Id of the Kafka cluster."""
    code: str
    """Digest of the fold's code: another release may compute another state."""

    def file(self, folder: Path) -> Path:
        """Return the path of its file in ``folder``."""
        cluster = blake2b(self.cluster.encode(), digest_size=8).hexdigest()
        return folder / f"{self.name}-{cluster}{_SUFFIX}"


def digest_of(*sources: str, models: Iterable[type[Record]] = ()) -> str:
    """Return a digest of the files ``sources`` and of the JSON Schemas of ``models``, which identifies the code of a
    fold and the records that it can read.

    Models count with everything that they consist of: with another value of an enum, a release reads records that the
    one before it counted as unreadable.
    """
    digest = blake2b(digest_size=16)
    schemas = (json.dumps(model.model_json_schema(), sort_keys=True).encode() for model in models)
    for content in (*(Path(source).read_bytes() for source in sources), *schemas):
        digest.update(b"%d " % len(content))
        digest.update(content)
    return digest.hexdigest()


def write_fold(folder: Path, identity: FoldIdentity, marks: Marks, state: bytes) -> bool:
    """Store ``state``, which was folded up to ``marks``; return ``False`` if it is too large. Raises ``OSError``.

    Only the owner can read the file, because it contains ids and names from the log.
    """
    head = json.dumps(
        {
            "name": identity.name,
            "cluster": identity.cluster,
            "code": identity.code,
            "marks": {
                topic: {str(number): mark for number, mark in partitions.items()} for topic, partitions in marks.items()
            },
        }
    ).encode()
    if len(head) + len(state) >= MAX_BYTES:
        return False
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(head + b"\n" + state)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(packed)
        os.replace(name, identity.file(folder))
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _drop_oldest(folder)
    return True


def read_fold(folder: Path, identity: FoldIdentity) -> tuple[dict[str, dict[int, Bookmark]], bytes] | None:
    """Return the bookmarks and the state of a stored fold; ``None`` if there is none.

    Raises :class:`UnusableFoldError` if it is damaged, too large or was written by other code, and ``OSError``.
    """
    try:
        packed = identity.file(folder).read_bytes()
    except FileNotFoundError:
        return None
    try:
        if not 0 <= zstandard.frame_content_size(packed) <= MAX_BYTES:
            raise UnusableFoldError("it exceeds the size limit")
        head, _, state = zstandard.ZstdDecompressor().decompress(packed).partition(b"\n")
        stored = json.loads(head)
        if (stored["name"], stored["cluster"], stored["code"]) != (identity.name, identity.cluster, identity.code):
            raise UnusableFoldError("it belongs to another release or cluster")
        marks = {
            topic: {int(number): Bookmark(int(offset), str(digest)) for number, (offset, digest) in partitions.items()}
            for topic, partitions in stored["marks"].items()
        }
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFoldError(f"it is damaged ({error})") from error
    return marks, state


def _drop_oldest(folder: Path) -> None:
    ages: list[tuple[float, Path]] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):  # another process may delete files, too
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[:-MAX_FILES]:
        path.unlink(missing_ok=True)
