"""Which ``Weights`` records a follower acts on. Pure: decided from the record alone, before any request is made.

Anybody who can write to the topic ``weights`` can write a record there. It is acted on where all of this holds: its
fields are within bounds, its manifest stands at its place in the store that the follower is configured for, a trusted
key signed it, and it comes after the versions that were fetched. What is not acted on leaves no trace in what is
known, so honest versions after it are followed as before. A signature can be replayed: that of an earlier life of the
run names versions whose objects are gone. So a version that was not fetched outranks nothing, whatever its number.
"""

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from headrace.schemas.records.weights import Weights
from headrace.trainer.follower.versions import KnownVersions, is_known
from headrace.trainer.weights.publish import manifest_path
from headrace.trainer.weights.signing import is_signed_by
from headrace.trainer.weights.store import MAX_OBJECT_BYTES

MAX_VERSION = 2**53 - 1
"""Largest version: what JSON's readers hold exactly."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 100
"""Characters that are repeated of what a record says."""


def problem_with(pointer: Weights, versions: KnownVersions, *, store_url: str, trust: Collection[str]) -> str | None:
    """Why ``pointer``, a record of the followed run, is not acted on; ``None`` where it is.

    ``store_url`` is the configured object store, ``trust`` the public keys that may sign.
    """
    return _field_problem(pointer, store_url) or _signature_problem(pointer, trust) or _chain_problem(pointer, versions)


def leaves_a_gap(pointer: Weights, versions: KnownVersions) -> bool:
    """Whether versions between the newest known one and ``pointer`` were never announced, or their records are gone."""
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
        return f"the signature is not by {_shown(pointer.signed_by)}, as it says, or the record was changed"
    return f"it is signed by {_shown(pointer.signed_by)}, which `trust` does not name"


def _chain_problem(pointer: Weights, versions: KnownVersions) -> str | None:
    if is_known(versions, pointer):
        return None
    fetched = {other.version: other.sha256 for other in versions.known if other.sha256 in versions.fetched}
    if pointer.version in fetched:
        return f"version {pointer.version} is known with manifest {fetched[pointer.version]}, and this is another"
    if fetched and pointer.version < max(fetched):
        return f"it comes after version {max(fetched)}, which is newer"
    return None


def _same_place(uri: str, expected: str) -> bool:
    """Whether both are the same address, compared part by part; nothing is decoded or made shorter before."""
    try:
        found = urlsplit(uri)
    except ValueError:
        return False
    wanted = urlsplit(expected)
    return uri == uri.strip() and found == wanted


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
