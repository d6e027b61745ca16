"""A cache of policy versions on the engine's disk: fetched, verified, and limited to the last few.

Files are named by the hash of their content (``9f86d081….safetensors``), so that no name of a run becomes a path, and
an existing file is reused once its hash has been checked.
"""

import asyncio
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from headrace.schemas.objects.store import MAX_OBJECT_BYTES, ObjectStore, file_sha256
from headrace.schemas.records.weights import Manifest, Weights
from headrace.trainer.weights.canary import MAX_CANARY_TOKENS
from headrace.trainer.weights.published import WEIGHTS_FILE, fetch_manifest, weights_path

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 100
_SUFFIX = ".safetensors"
_ABANDONED_S = 3600.0


class UnusableWeights(ValueError):
    """A version that this follower cannot apply; a retry would not help."""


@dataclass(frozen=True, slots=True)
class LocalWeights:
    """A verified version on disk."""

    pointer: Weights
    """The record that announced it."""
    file: Path
    """Its safetensors file, absolute."""
    sha256: str
    """Hash of the file (hex)."""
    manifest: Manifest
    """Its manifest, with the canaries that an engine must reproduce."""
    download_s: float
    """Seconds to fetch and verify."""


def checked_file(manifest: Manifest, pointer: Weights) -> tuple[str, str]:
    """Returns path and sha256 of the manifest's only object, the weights.

    Raises :class:`UnusableWeights` if there is not exactly one, at its expected path, or if its size, its hash or the
    canaries are out of bounds. No value of the manifest is used as a path before this check.
    """
    expected = f"{weights_path(pointer.run, pointer.version)}/{WEIGHTS_FILE}"
    if list(manifest.files) != [expected] or list(manifest.sizes) != [expected]:
        raise UnusableWeights(
            f"expected one object with its size, {expected}; the manifest names {sorted(manifest.files)[:5]}"
        )
    sha256, size = manifest.files[expected], manifest.sizes[expected]
    if not _SHA256.fullmatch(sha256):
        raise UnusableWeights(f"the manifest's sha256 {sha256[:_SHOWN]!r} is not 64 hex digits")
    if not 0 <= size <= MAX_OBJECT_BYTES or size != pointer.size:
        raise UnusableWeights(f"{expected} has {size} bytes by the manifest and {pointer.size} by its record")
    tokens = sum(len(canary.token_ids) for canary in manifest.canaries)
    if not manifest.canaries or tokens > MAX_CANARY_TOKENS:
        raise UnusableWeights(
            f"{len(manifest.canaries)} canaries of {tokens} tokens: at least one is needed, of {MAX_CANARY_TOKENS} "
            "tokens at most"
        )
    for number, canary in enumerate(manifest.canaries):
        given = [each for each in (canary.logprobs, canary.parent_logprobs) if each is not None]
        if len(canary.token_ids) < 2 or min(canary.token_ids) < 0 or {*map(len, given)} != {len(canary.token_ids) - 1}:
            raise UnusableWeights(f"canary {number} is not token ids with a log-probability for each after the first")
    return expected, sha256


async def fetch_weights(pointer: Weights, store: ObjectStore, folder: Path) -> LocalWeights:
    """Fetch the version of the trusted record ``pointer`` from ``store`` into ``folder``, and verify it.

    Raises :class:`UnusableWeights`, ``ObjectMismatch`` (corrupt), ``FileNotFoundError`` (missing), ``ValueError``
    (a manifest of something else), or ``StoreUnavailable``.
    """
    began = time.perf_counter()
    if pointer.kind != "anchor":
        raise UnusableWeights(
            f"version {pointer.version} is of kind {pointer.kind!r}: this follower loads anchors only"
        )
    manifest = await fetch_manifest(store, pointer)
    path, sha256 = checked_file(manifest, pointer)
    file = folder.resolve() / (sha256 + _SUFFIX)
    if not file.is_file() or await asyncio.to_thread(file_sha256, file) != sha256:
        await store.download(path, file, sha256=sha256, size=manifest.sizes[path])
    file.touch()
    return LocalWeights(pointer, file, sha256, manifest, time.perf_counter() - began)


def drop_old(folder: Path, keep: int, needed: Collection[Path] = ()) -> None:
    """Delete all files of ``folder`` but the ``keep`` last used ones and those ``needed``.

    Remains of killed downloads are deleted too, once they are older than any running download.
    """
    for partial in folder.glob(f".*{_SUFFIX}.*.partial"):
        if time.time() - partial.stat().st_mtime > _ABANDONED_S:
            partial.unlink(missing_ok=True)
    files = sorted(folder.glob("*" + _SUFFIX), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in files[keep:]:
        if file not in needed:
            file.unlink(missing_ok=True)
