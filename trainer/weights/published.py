"""Where a published policy version lies in the object store, and fetching its manifest and tokenizer.

    weights/<run>/00000412/model.safetensors        what engines load
    weights/<run>/00000412/manifest.json            sizes, sha256 of each file, canaries, the tokenizer's hash
    tokenizers/<sha256>.json                        the tokenizer, once for all versions that share it

Reading needs no signing keys, so this module does without the trainer's packages.
"""

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.weights import Manifest, Tokenizer, Weights

WEIGHTS_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"

MAX_MANIFEST_BYTES = 32 * 1024**2
"""Largest manifest that is read. It consists mostly of canaries, at about 50 bytes per token."""

MAX_TOKENIZER_BYTES = 64 * 1024**2
"""Largest tokenizer that is published or read: those of large vocabularies have 10 to 35 MB."""


def weights_path(run: str, version: int) -> str:
    """Returns the folder of a version in the object store: ``weights/<run>/<version, 8 digits>``."""
    return f"weights/{run}/{version:08d}"


def tokenizer_path(sha256: str) -> str:
    """Returns the path of a tokenizer in the object store."""
    return f"tokenizers/{sha256}.json"


def manifest_path(run: str, version: int) -> str:
    """Returns the path of a version's manifest in the object store."""
    return f"{weights_path(run, version)}/{MANIFEST_FILE}"


async def fetch_manifest(store: ObjectStore, pointer: Weights) -> Manifest:
    """Fetch the manifest of ``pointer`` from its path in ``store``, and verify its hash.

    Raises ``ObjectMismatch``, ``FileNotFoundError``, ``StoreUnavailable``, and ``ValueError`` if run, version or parent
    differ from those of ``pointer``.
    """
    path = manifest_path(pointer.run, pointer.version)
    data = await store.fetch(path, sha256=pointer.sha256, max_bytes=MAX_MANIFEST_BYTES)
    manifest = Manifest.model_validate_json(data)
    found = (manifest.run, manifest.version, manifest.parent)
    expected = (pointer.run, pointer.version, pointer.parent)
    if found != expected:
        raise ValueError(
            f"{store.uri(path)} is of run {manifest.run!r} version {manifest.version} parent {manifest.parent}, not "
            f"of {pointer.run!r} version {pointer.version} parent {pointer.parent}"
        )
    return manifest


async def fetch_tokenizer(store: ObjectStore, tokenizer: Tokenizer) -> bytes:
    """Fetch ``tokenizer.json`` and verify its hash.

    Raises ``ObjectMismatch``, ``FileNotFoundError`` and ``StoreUnavailable``.
    """
    return await store.fetch(tokenizer_path(tokenizer.sha256), sha256=tokenizer.sha256, max_bytes=MAX_TOKENIZER_BYTES)
