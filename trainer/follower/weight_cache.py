"""Policy versions on the engine's own disk: fetched, verified, and only the last few kept.

Files are named by the hash of their content (``9f86d081….safetensors``), so that no run's or version's name becomes a
path and a file that is there already is the right one once its hash was checked.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from headrace.schemas.records.weights import Canary, Manifest, Weights
from headrace.trainer.weights.publish import MANIFEST_FILE, fetch_manifest, weights_path
from headrace.trainer.weights.store import ObjectStore, file_sha256

_SUFFIX = ".safetensors"
_ABANDONED_S = 3600.0


class UnusableWeights(ValueError):
    """A version that this follower cannot apply, however often it tries."""


@dataclass(frozen=True, slots=True)
class LocalWeights:
    """A verified version on disk."""

    pointer: Weights
    """The record that told of it."""
    file: Path
    """Its safetensors file, absolute."""
    sha256: str
    """Hash of the file (hex)."""
    canaries: tuple[Canary, ...]
    """What an engine must reproduce."""
    download_s: float
    """Seconds to fetch and verify."""


def store_of(pointer: Weights) -> ObjectStore:
    """The object store that ``pointer`` points into; raises :class:`UnusableWeights` for an address of another form."""
    suffix = f"/{weights_path(pointer.run, pointer.version)}/{MANIFEST_FILE}"
    if not pointer.manifest_uri.endswith(suffix):
        raise UnusableWeights(f"manifest_uri {pointer.manifest_uri} does not end in {suffix}")
    return ObjectStore(pointer.manifest_uri.removesuffix(suffix))


def single_file(manifest: Manifest) -> str:
    """Path of the manifest's one object; raises :class:`UnusableWeights` where there is not exactly one with a size."""
    paths = list(manifest.files)
    if len(paths) != 1 or not paths[0].endswith(_SUFFIX) or paths[0] not in manifest.sizes:
        raise UnusableWeights(f"expected one {_SUFFIX} object with its size; the manifest names {paths[:5]}")
    return paths[0]


async def fetch_weights(pointer: Weights, folder: Path) -> LocalWeights:
    """The version that ``pointer`` tells of, verified, in ``folder``.

    Raises :class:`UnusableWeights`, ``ObjectMismatch`` (corrupt), ``FileNotFoundError`` (missing), ``ValueError``
    (a manifest of something else), or ``StoreUnavailable``.
    """
    began = time.perf_counter()
    if pointer.kind != "anchor":
        raise UnusableWeights(
            f"version {pointer.version} is of kind {pointer.kind!r}: this follower loads anchors only"
        )
    store = store_of(pointer)
    manifest = await fetch_manifest(store, pointer)
    path = single_file(manifest)
    sha256 = manifest.files[path]
    file = folder.resolve() / (sha256 + _SUFFIX)
    if not file.is_file() or await asyncio.to_thread(file_sha256, file) != sha256:
        await store.download(path, file, sha256=sha256, size=manifest.sizes[path])
    file.touch()
    return LocalWeights(pointer, file, sha256, tuple(manifest.canaries), time.perf_counter() - began)


def drop_old(folder: Path, keep: int, needed: Collection[Path] = ()) -> None:
    """Delete all but the ``keep`` files of ``folder`` that were used last, and those ``needed``.

    What a download that was killed left behind goes too, once it is surely nobody's.
    """
    for partial in folder.glob(f".*{_SUFFIX}.*.partial"):
        if time.time() - partial.stat().st_mtime > _ABANDONED_S:
            partial.unlink(missing_ok=True)
    files = sorted(folder.glob("*" + _SUFFIX), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in files[keep:]:
        if file not in needed:
            file.unlink(missing_ok=True)
