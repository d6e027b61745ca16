"""A run's versions and their parents. Pure.

0 ── 1 ── 2 ── 3 ── 4        ancestry of 3: 3, 2, 1, 0       descendants of 2: 3, 4, 5
                └── 5
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.schemas.records.weights import Weights


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A version and its ancestors."""

    versions: tuple[int, ...]
    """The version first, then its parent, and so on."""
    lost_at: int | None = None
    """A parent that the log does not hold, so that earlier ancestors are unknown. ``None``: the line is complete."""


@dataclass(frozen=True, slots=True)
class VersionGraph:
    """The versions of one run."""

    parents: Mapping[int, int | None]
    """Version → the version that it was trained from; ``None`` for the base model."""

    def __contains__(self, version: int) -> bool:
        """Whether the log holds the version."""
        return version in self.parents

    def ancestry(self, version: int) -> Ancestry:
        """Returns ``version`` and its ancestors. Raises ``KeyError`` if the log does not hold it."""
        line, parent = [version], self.parents[version]
        while parent is not None:
            if parent not in self.parents:
                return Ancestry(tuple(line), lost_at=parent)
            line.append(parent)
            parent = self.parents[parent]
        return Ancestry(tuple(line))

    def descendants(self, version: int) -> list[int]:
        """Returns every version trained from ``version``, directly or indirectly, ascending."""
        found = {version}
        for later in sorted(self.parents):  # a parent is older than its child, so it comes first
            if self.parents[later] in found:
                found.add(later)
        return sorted(found - {version})


def version_graph(weights: Iterable[Weights], run: str) -> VersionGraph:
    """Returns the versions of ``run``. Of several records of a version the first one counts.

    Raises ``ValueError`` if a version's parent is not older than the version.
    """
    parents: dict[int, int | None] = {}
    for each in weights:
        if each.run != run:
            continue
        if each.parent is not None and each.parent >= each.version:
            raise ValueError(f"version {each.version} of run {run!r} names version {each.parent} as its parent")
        parents.setdefault(each.version, each.parent)
    return VersionGraph(parents)


def spans(versions: Iterable[int]) -> str:
    """Returns numbers as ranges: ``3, 5–9, 12``."""
    runs: list[list[int]] = []
    for version in sorted(set(versions)):
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
