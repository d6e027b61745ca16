"""Which policy version an engine should serve: the newest that is there and not refused, else the last good one."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace.schemas.records.weights import Weights

MAX_KNOWN = 512
"""Pointers that are remembered: the newest ones and the last good one."""


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """What a follower knows of its run's versions."""

    known: tuple[Weights, ...] = ()
    """Pointers by ascending version. Several of one version only while none of them was fetched: an earlier life of the
    run may have signed another one."""
    refused: frozenset[str] = frozenset()
    """Manifest hashes of those that must not be served: what they load is not what was trained, or cannot be loaded."""
    good: int | None = None
    """Version that the engine served and that was verified, last."""
    absent: frozenset[str] = frozenset()
    """Manifest hashes of those whose objects the store never had: they are as if they had not been announced."""
    fetched: frozenset[str] = frozenset()
    """Manifest hashes of those whose objects were fetched by this process: what is older than these comes too late."""


def is_known(versions: KnownVersions, pointer: Weights) -> bool:
    """Whether this version with this manifest was learnt before."""
    return any((pointer.version, pointer.sha256) == (other.version, other.sha256) for other in versions.known)


def learn(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """``versions`` with ``pointer``, which was found to be trusted."""
    if pointer.sha256 in versions.absent or is_known(versions, pointer):
        return versions
    ascending = sorted((*versions.known, pointer), key=lambda each: each.version)
    recent = set(range(len(ascending) - MAX_KNOWN, len(ascending)))
    kept = [p for number, p in enumerate(ascending) if number in recent or p.version == versions.good]
    return replace(versions, known=tuple(kept))


def refuse(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """``versions`` with ``pointer`` never to be served again."""
    return replace(versions, refused=versions.refused | {pointer.sha256})


def give_up(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """``versions`` without ``pointer``, whose objects never came."""
    known = tuple(other for other in versions.known if other.sha256 != pointer.sha256)
    return replace(versions, known=known, absent=versions.absent | {pointer.sha256})


def fetch(versions: KnownVersions, pointer: Weights) -> KnownVersions:
    """``versions`` where ``pointer``'s objects are known to be there, as they were signed."""
    return replace(versions, fetched=versions.fetched | {pointer.sha256})


def target(versions: KnownVersions, not_now: Collection[str] = ()) -> Weights | None:
    """The version to serve; ``None`` where there is none.

    The newest. Where it was refused, the last good one: a skipped version between the two was never verified, and what
    spoilt the newest may have spoilt it too. Without a good one, the newest of the others. ``not_now`` are manifest
    hashes of versions whose objects are not there: these outrank nothing.
    """
    there = [pointer for pointer in versions.known if pointer.sha256 not in not_now]
    candidates = [pointer for pointer in there if pointer.sha256 not in versions.refused]
    if candidates and candidates[-1].version == there[-1].version:
        return candidates[-1]
    for pointer in candidates:
        if pointer.version == versions.good:
            return pointer
    return candidates[-1] if candidates else None
