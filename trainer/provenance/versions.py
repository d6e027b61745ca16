"""A run's versions and what each was trained from: the spine of its lineage. Pure.

0 ── 1 ── 2 ── 3 ── 4        ancestry of 3: 3, 2, 1, 0       descendants of 2: 3, 4, 5
                └── 5
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.schemas.records.weights import Weights


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A version and everything that it was trained from."""

    versions: tuple[int, ...]
    """The version itself first, then its parent, and so on."""
    lost_at: int | None = None
    """A parent that the log does not know: what came before it cannot be told. ``None``: the line is whole."""


@dataclass(frozen=True, slots=True)
class VersionGraph:
    """Versions of one run."""

    parents: Mapping[int, int | None]
    """Version → the version that it was trained from; ``None`` for the base model."""

    def __contains__(self, version: int) -> bool:
        """Whether the log knows the version."""
        return version in self.parents

    def ancestry(self, version: int) -> Ancestry:
        """``version`` and what it was trained from. Raises ``KeyError`` where the log does not know it."""
        line, parent = [version], self.parents[version]
        while parent is not None:
            if parent not in self.parents:
                return Ancestry(tuple(line), lost_at=parent)
            line.append(parent)
            parent = self.parents[parent]
        return Ancestry(tuple(line))

    def descendants(self, version: int) -> list[int]:
        """Every version that was trained from ``version``, directly or not, ascending."""
        found = {version}
        for later in sorted(self.parents):  # a parent is older than its child, and so comes before it
            if self.parents[later] in found:
                found.add(later)
        return sorted(found - {version})


def version_graph(weights: Iterable[Weights], run: str) -> VersionGraph:
    """The versions of ``run``. What is said twice counts as it was said first.

    Raises ``ValueError`` where a version's parent is not older than itself.
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
    """``3, 5–9, 12``: numbers as people write many of them."""
    runs: list[list[int]] = []
    for version in sorted(set(versions)):
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
