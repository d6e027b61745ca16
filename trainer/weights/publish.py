"""Publishing a policy version: the weights and their manifest in the object store, a ``Weights`` record as the pointer.

    Weights(run="search", version=412, manifest_uri="file:///…/weights/search/00000412/manifest.json", …)

``published`` says where the objects lie. The manifest is written last: if it exists, every object that it names exists.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from headrace.schemas.objects.store import ObjectStore, file_sha256
from headrace.schemas.records.weights import Canary, Manifest, Tokenizer, Weights
from headrace.trainer.step_effects import Effect, EffectCallback, ignore_effect
from headrace.trainer.weights.published import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    manifest_path,
    tokenizer_path,
    weights_path,
)
from headrace.trainer.weights.signing import SigningKey


def make_manifest(
    weights: Path,
    *,
    run: str,
    version: int,
    parent: int | None,
    tensors: int,
    canaries: Sequence[Canary],
    dtype: str = "",
    exact: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Manifest:
    """Returns the manifest of the safetensors file ``weights`` as version ``version`` of ``run``."""
    path = f"{weights_path(run, version)}/{WEIGHTS_FILE}"
    return Manifest(
        run=run,
        version=version,
        parent=parent,
        files={path: file_sha256(weights)},
        sizes={path: weights.stat().st_size},
        tensors=tensors,
        canaries=list(canaries),
        dtype=dtype,
        exact=exact,
        tokenizer=tokenizer,
    )


def tokenizer_in(folder: Path, name: str) -> Tokenizer | None:
    """Returns the description of the tokenizer in a Hugging Face directory; ``None`` if it has no ``tokenizer.json``,
    or one larger than ``MAX_TOKENIZER_BYTES``.
    """
    file = folder / TOKENIZER_FILE
    if not file.is_file() or file.stat().st_size > MAX_TOKENIZER_BYTES:
        return None
    return Tokenizer(name=name, sha256=file_sha256(file), size=file.stat().st_size)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the manifest's bytes in the store; ``Weights.sha256`` is their hash."""
    return manifest.model_dump_json().encode()


def make_pointer(store: ObjectStore, manifest: Manifest, *, step: int, key: SigningKey) -> Weights:
    """Returns the record that announces the version, signed with ``key``; published once the objects exist."""
    pointer = Weights(
        run=manifest.run,
        version=manifest.version,
        parent=manifest.parent,
        kind="anchor",
        manifest_uri=store.uri(manifest_path(manifest.run, manifest.version)),
        sha256=hashlib.sha256(manifest_bytes(manifest)).hexdigest(),
        size=sum(manifest.sizes.values()),
        step=step,
    )
    return key.sign(pointer)


async def upload(
    store: ObjectStore, manifest: Manifest, weights: Path, on_effect: EffectCallback = ignore_effect
) -> None:
    """Create the objects: weights, the tokenizer next to them unless an earlier version stored it, and the manifest.
    Idempotent, so that it can be repeated after a crash.

    Raises :class:`headrace.schemas.objects.store.ObjectConflict` if another run of that name wrote different ones,
    :class:`headrace.schemas.objects.unavailable.StoreUnavailable` if it can be retried.
    """
    (path,) = manifest.files
    await store.create(path, weights)
    on_effect(Effect.WEIGHTS_UPLOADED)
    if manifest.tokenizer is not None:
        await store.create(tokenizer_path(manifest.tokenizer.sha256), weights.parent / TOKENIZER_FILE)
    await store.create(manifest_path(manifest.run, manifest.version), manifest_bytes(manifest))
    on_effect(Effect.UPLOADED)
