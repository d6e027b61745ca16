"""Which policy version an engine should serve: the newest that is known and was not refused, else the last good one."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace.schemas.records.weights import Weights

MAX_KNOWN = 64
"""Pointers that are remembered: the newest ones and the last good one."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What a follower knows of its run's versions."""

    known: tuple[Weights, ...] = ()
    """Pointers by ascending version, one a version."""
    refused: frozenset[str] = frozenset()
    """Manifest hashes of those that must not be served: what they load is not what was trained, or cannot be loaded."""
    good: int | None = None
    """Version that the engine served and that was verified, last."""


def learn(versions: Versions, pointer: Weights) -> Versions:
    """``versions`` with ``pointer``, which was found to be trusted; of one version the first record stands."""
    known = {pointer.version: pointer} | {other.version: other for other in versions.known}
    ascending = [known[version] for version in sorted(known)]
    recent = set(range(len(ascending) - MAX_KNOWN, len(ascending)))
    kept = [p for number, p in enumerate(ascending) if number in recent or p.version == versions.good]
    return replace(versions, known=tuple(kept))


def refuse(versions: Versions, pointer: Weights) -> Versions:
    """``versions`` with ``pointer`` never to be served again."""
    return replace(versions, refused=versions.refused | {pointer.sha256})


def target(versions: Versions, not_now: Collection[str] = ()) -> Weights | None:
    """The version to serve; ``None`` where there is none.

    The newest. Where it was refused, the last good one: a skipped version between the two was never verified, and what
    spoilt the newest may have spoilt it too. Without a good one, the newest of the others. ``not_now`` are manifest
    hashes of versions that cannot be had at the moment, and are passed over like refused ones.
    """
    excluded = versions.refused.union(not_now)
    if versions.known and versions.known[-1].sha256 not in excluded:
        return versions.known[-1]
    candidates = [pointer for pointer in versions.known if pointer.sha256 not in excluded]
    for pointer in candidates:
        if pointer.version == versions.good:
            return pointer
    return candidates[-1] if candidates else None
