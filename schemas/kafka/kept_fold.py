"""A fold over topics that outlives its process: one file in a user's cache, with the bookmarks that it was kept at.

It is derived from the log and only saves time: whoever loses it reads the log again. It is bound to the cluster and to
the code that folded, has a checksum, and is replaced as a whole, so of two writers one wins.
"""

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import zstandard

from headrace.schemas.kafka.bookmarks import Bookmark, Marks

MAX_BYTES = 1024**3
"""Largest fold that is kept, in bytes before compression: the ledger's of some twenty million trajectories."""

MAX_FILES = 16
"""Folds that are kept, of all clusters; the oldest give way."""

_SUFFIX = ".fold"


class UnusableFoldError(Exception):
    """A kept fold cannot be used, and why; the log has to be read from the start."""


@dataclass(frozen=True, slots=True)
class FoldIdentity:
    """What a fold is of. Two folds of one identity and equal bookmarks are equal."""

    name: str
    """Which fold: ``ledger``."""
    cluster: str
    """Id of the Kafka cluster."""
    code: str
    """Digest of the code that folds: another release may fold otherwise."""

    def file(self, folder: Path) -> Path:
        """Where it is kept in ``folder``."""
        cluster = blake2b(self.cluster.encode(), digest_size=8).hexdigest()
        return folder / f"{self.name}-{cluster}{_SUFFIX}"


def digest_of(*sources: str) -> str:
    """A digest of the files ``sources``: what a fold's code is known by."""
    digest = blake2b(digest_size=16)
    for source in sources:
        content = Path(source).read_bytes()
        digest.update(b"%d " % len(content))
        digest.update(content)
    return digest.hexdigest()


def write_fold(folder: Path, identity: FoldIdentity, marks: Marks, state: bytes) -> bool:
    """Keep ``state``, which was folded up to ``marks``; ``False`` where it is too large. Raises ``OSError``.

    The file is its owner's alone, as it holds ids and names out of the log.
    """
    head = json.dumps(
        {
            "name": identity.name,
            "cluster": identity.cluster,
            "code": identity.code,
            "marks": {topic: {str(number): mark for number, mark in places.items()} for topic, places in marks.items()},
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
    """The bookmarks and state of the fold that was kept; ``None`` where there is none.

    Raises :class:`UnusableFoldError` where it is damaged, too large or of other code, and ``OSError``.
    """
    try:
        packed = identity.file(folder).read_bytes()
    except FileNotFoundError:
        return None
    try:
        if not 0 <= zstandard.frame_content_size(packed) <= MAX_BYTES:
            raise UnusableFoldError("is larger than any that is kept")
        head, _, state = zstandard.ZstdDecompressor().decompress(packed).partition(b"\n")
        said = json.loads(head)
        if (said["name"], said["cluster"], said["code"]) != (identity.name, identity.cluster, identity.code):
            raise UnusableFoldError("is of another release or cluster")
        marks = {
            topic: {int(number): Bookmark(int(offset), str(digest)) for number, (offset, digest) in places.items()}
            for topic, places in said["marks"].items()
        }
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFoldError(f"is damaged ({error})") from error
    return marks, state


def _drop_oldest(folder: Path) -> None:
    ages: list[tuple[float, Path]] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):  # another process drops too
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[:-MAX_FILES]:
        path.unlink(missing_ok=True)
