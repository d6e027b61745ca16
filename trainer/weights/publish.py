"""Publishing a policy version: the weights and their manifest in the object store, a ``Weights`` record as the pointer.

    weights/<run>/00000412/model.safetensors        what engines load
    weights/<run>/00000412/manifest.json            sizes, sha256 of each file, canaries

The manifest is written last: where it stands, everything that it names stands too.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from headrace.schemas.records.weights import Canary, Manifest, Weights
from headrace.trainer.effects import Effect, Told, tell_nobody
from headrace.trainer.weights.store import ObjectStore, file_sha256

WEIGHTS_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"


def weights_path(run: str, version: int) -> str:
    """The folder of a version in the object store: ``weights/<run>/<version, 8 digits>``."""
    return f"weights/{run}/{version:08d}"


def make_manifest(
    weights: Path, *, run: str, version: int, parent: int | None, tensors: int, canaries: Sequence[Canary]
) -> Manifest:
    """The manifest of the safetensors file ``weights`` as version ``version`` of ``run``."""
    path = f"{weights_path(run, version)}/{WEIGHTS_FILE}"
    return Manifest(
        run=run,
        version=version,
        parent=parent,
        files={path: file_sha256(weights)},
        sizes={path: weights.stat().st_size},
        tensors=tensors,
        canaries=list(canaries),
    )


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as it stands in the store; ``Weights.sha256`` is the hash of these bytes."""
    return manifest.model_dump_json().encode()


def make_pointer(store: ObjectStore, manifest: Manifest, *, step: int) -> Weights:
    """The record that tells of the version: what the log says once the objects stand."""
    return Weights(
        run=manifest.run,
        version=manifest.version,
        parent=manifest.parent,
        kind="anchor",
        manifest_uri=store.uri(f"{weights_path(manifest.run, manifest.version)}/{MANIFEST_FILE}"),
        sha256=hashlib.sha256(manifest_bytes(manifest)).hexdigest(),
        size=sum(manifest.sizes.values()),
        step=step,
    )


async def upload(store: ObjectStore, manifest: Manifest, weights: Path, told: Told = tell_nobody) -> None:
    """Create both objects; a repetition after a crash changes nothing.

    Raises :class:`headrace.trainer.weights.store.ObjectConflict` where another run of that name wrote different ones,
    :class:`headrace.trainer.weights.unavailable.StoreUnavailable` where it can be tried again.
    """
    (path,) = manifest.files
    await store.create(path, weights)
    told(Effect.WEIGHTS_UPLOADED)
    await store.create(f"{weights_path(manifest.run, manifest.version)}/{MANIFEST_FILE}", manifest_bytes(manifest))
    told(Effect.UPLOADED)


async def fetch_manifest(store: ObjectStore, pointer: Weights) -> Manifest:
    """The verified manifest of ``pointer``; raises ``ObjectMismatch``, ``FileNotFoundError`` or ``ValueError``."""
    data = await store.fetch(store.path(pointer.manifest_uri), sha256=pointer.sha256)
    manifest = Manifest.model_validate_json(data)
    if (manifest.run, manifest.version) != (pointer.run, pointer.version):
        raise ValueError(
            f"{pointer.manifest_uri} is of run {manifest.run!r} version {manifest.version}, "
            f"not of {pointer.run!r} version {pointer.version}"
        )
    return manifest
