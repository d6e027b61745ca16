"""Which ``Weights`` records a follower trusts. Pure: decided from the record alone, before any request is made.

Anyone with write access to the topic ``weights`` can publish a record there. It is trusted if its fields are within
bounds, its manifest is at the expected path of the configured store, a trusted key signed it, and it is newer than the
versions fetched so far. An untrusted record does not change the known versions, so valid versions after it are still
followed. A signature can be replayed: a record of an earlier instance of the run names versions whose objects have been
deleted. Therefore a version that was not fetched never outranks another, whatever its number.
"""

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from headrace.schemas.objects.store import MAX_OBJECT_BYTES
from headrace.schemas.records.weights import Weights
from headrace.trainer.follower.versions import KnownVersions, is_known
from headrace.trainer.weights.published import manifest_path
from headrace.trainer.weights.signing import is_signed_by

MAX_VERSION = 2**53 - 1
"""Largest version: the largest integer that all JSON readers represent exactly."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 100
"""Characters of a record's value that are repeated in a message."""


def problem_with(pointer: Weights, versions: KnownVersions, *, store_url: str, trust: Collection[str]) -> str | None:
    """Returns why ``pointer``, a record of the followed run, is not trusted; ``None`` if it is.

    ``store_url`` is the configured object store, ``trust`` the public keys that may sign.
    """
    return _field_problem(pointer, store_url) or _signature_problem(pointer, trust) or _chain_problem(pointer, versions)


def leaves_a_gap(pointer: Weights, versions: KnownVersions) -> bool:
    """Whether the records of versions between the newest known one and ``pointer`` are missing."""
    return bool(versions.known) and pointer.version > versions.known[-1].version + 1


def _field_problem(pointer: Weights, store_url: str) -> str | None:
    if pointer.version > MAX_VERSION or pointer.step > MAX_VERSION:
        return f"version {_shown(pointer.version)}, step {_shown(pointer.step)}: at most {MAX_VERSION} is possible"
    parent = pointer.version - 1 if pointer.version else None
    if pointer.parent != parent:
        return f"its parent is {_shown(pointer.parent)}, and that of version {pointer.version} is {parent}"
    if not _SHA256.fullmatch(pointer.sha256):
        return f"sha256 {_shown(pointer.sha256)} is not 64 hex digits"
    if pointer.size > MAX_OBJECT_BYTES:
        return f"a size of {_shown(pointer.size)} bytes is above {MAX_OBJECT_BYTES}"
    expected = f"{store_url.rstrip('/')}/{manifest_path(pointer.run, pointer.version)}"
    if not _same_place(pointer.manifest_uri, expected):
        return f"manifest_uri {_shown(pointer.manifest_uri)} is not {expected}, its place in store_url"
    return None


def _signature_problem(pointer: Weights, trust: Collection[str]) -> str | None:
    if not pointer.signature:
        return "it is not signed"
    if any(is_signed_by(pointer, key) for key in trust):
        return None
    if pointer.signed_by in trust:
        return f"the signature is not by {_shown(pointer.signed_by)}, which it names, or the record was changed"
    return f"it is signed by {_shown(pointer.signed_by)}, which `trust` does not name"


def _chain_problem(pointer: Weights, versions: KnownVersions) -> str | None:
    if is_known(versions, pointer):
        return None
    fetched = {other.version: other.sha256 for other in versions.known if other.sha256 in versions.fetched}
    if pointer.version in fetched:
        return f"version {pointer.version} is known with another manifest, {fetched[pointer.version]}"
    if fetched and pointer.version < max(fetched):
        return f"it comes after version {max(fetched)}, which is newer"
    return None


def _same_place(uri: str, expected: str) -> bool:
    """Whether both are the same address, compared part by part, without decoding or normalising."""
    try:
        found = urlsplit(uri)
    except ValueError:
        return False
    wanted = urlsplit(expected)
    return uri == uri.strip() and found == wanted


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
