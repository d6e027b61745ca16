"""Which policy version an engine should serve: the newest available one that is not refused, else the last good one."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace.schemas.records.weights import Weights

MAX_KNOWN = 512
"""Number of newest pointers that are kept, in addition to the last good one."""


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """The versions of a run that a follower knows, and their states."""

    known: tuple[Weights, ...] = ()
    """Pointers by ascending version. A version occurs more than once only until one of them is fetched: an earlier
    instance of the run may have signed another one."""
    refused: frozenset[str] = frozenset()
    """Manifest hashes of versions that must not be served: they cannot be loaded, or load other weights."""
    good: int | None = None
    """The last version that the engine served and that was verified."""
    absent: frozenset[str] = frozenset()
    """Manifest hashes of versions whose objects never appeared in the store: their records are ignored."""
    fetched: frozenset[str] = frozenset()
    """Manifest hashes of versions whose objects this process fetched: older versions are rejected."""


def is_known(versions: KnownVersions, pointer: Weights) -> bool:
    """Whether this version with this manifest is known."""
    return any((pointer.version, pointer.sha256) == (other.version, other.sha256) for other in versions.known)


def add_version(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """Returns ``versions`` with the trusted ``pointer`` added."""
    if pointer.sha256 in versions.absent or is_known(versions, pointer):
        return versions
    ascending = sorted((*versions.known, pointer), key=lambda each: each.version)
    recent = set(range(len(ascending) - MAX_KNOWN, len(ascending)))
    kept = [p for number, p in enumerate(ascending) if number in recent or p.version == versions.good]
    return replace(versions, known=tuple(kept))


def refuse(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """Returns ``versions`` with ``pointer`` refused for good."""
    return replace(versions, refused=versions.refused | {pointer.sha256})


def mark_absent(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """Returns ``versions`` without ``pointer``, whose objects never appeared."""
    known = tuple(other for other in versions.known if other.sha256 != pointer.sha256)
    return replace(versions, known=known, absent=versions.absent | {pointer.sha256})


def mark_fetched(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """Returns ``versions`` with the objects of ``pointer`` marked as fetched and verified."""
    return replace(versions, fetched=versions.fetched | {pointer.sha256})


def target_version(versions: KnownVersions, unavailable: Collection[str] = ()) -> Weights | None:
    """Returns the version to serve; ``None`` if there is none.

    It is the newest version. If that was refused, it is the last good one: a version between the two was never
    verified, and may have the defect of the newest. Without a good one, it is the newest of the others. Versions with
    manifest hashes in ``unavailable`` lack objects, and are ignored.
    """
    there = [pointer for pointer in versions.known if pointer.sha256 not in unavailable]
    candidates = [pointer for pointer in there if pointer.sha256 not in versions.refused]
    if candidates and candidates[-1].version == there[-1].version:
        return candidates[-1]
    for pointer in candidates:
        if pointer.version == versions.good:
            return pointer
    return candidates[-1] if candidates else None
