"""The lineage of a version: every step from the base model to it, what each was trained on, and shares. Pure.

It is folded step by step; the state is a row per step, and an entry for each value of each dimension.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.schemas.records.step import Step
from headrace.trainer.provenance.contributions import GONE, Contribution, Dimension
from headrace.trainer.provenance.evidence import Absence, MissingRecord
from headrace.trainer.provenance.shares import Shares
from headrace.trainer.provenance.versions import VersionGraph

MAX_SAMPLES = 20
"""Missing records that are named per topic and reason; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step in a lineage."""

    step: int
    """The step."""
    version: int
    """The version that it made."""
    groups: int
    """Groups trained."""
    trajectories: int
    """Trajectories trained."""
    tokens: int
    """Tokens trained."""
    reward_mean: float | None
    """Mean reward of its trajectories; ``None`` if the step's record lacks it."""
    ages: Mapping[str, int]
    """Versions between sampling and training → tokens."""
    missing: int
    """Number of missing records that it names."""
    data_sha256: str
    """Hash of its batch."""


@dataclass(slots=True)
class VersionLineage:
    """What a version was trained on."""

    run: str
    """Training run."""
    version: int
    """The version."""
    ancestry: tuple[int, ...]
    """The version and its ancestors, the version first."""
    lost_at: int | None
    """An ancestor that the log does not hold; ``None`` if the line is complete."""
    descendants: Sequence[int]
    """Versions trained from it."""
    steps: list[StepRow] = field(default_factory=list)
    """Steps from the base model to it, in order."""
    shares: Shares = field(default_factory=Shares)
    """Shares of all these steps."""
    own: Shares = field(default_factory=Shares)
    """Shares of the step that made it."""
    missing: Counter[tuple[str, Absence]] = field(default_factory=Counter)
    """Topic and reason → number of missing records that the steps name."""
    samples: list[MissingRecord] = field(default_factory=list)
    """Some of the missing records."""

    @property
    def unexplained(self) -> list[int]:
        """Ancestors whose step is not in the log; the base model has no step."""
        made = {row.version for row in self.steps}
        return sorted(version for version in self.ancestry if version and version not in made)

    def add(self, step: Step, given: Sequence[Contribution], missing: Sequence[MissingRecord]) -> None:
        """Add a step of the lineage, with its contributions and missing records."""
        amount = self.shares.add(step, given)
        if step.version == self.version:
            self.own.add(step, given)
        ages: Counter[str] = Counter()
        for each in given:
            ages[each.labels[Dimension.AGE]] += each.tokens or 0
        if rest := amount.tokens - ages.total():
            ages[GONE] += rest
        self.steps.append(
            StepRow(
                step=step.step,
                version=step.version,
                groups=len(step.groups),
                trajectories=amount.trajectories,
                tokens=amount.tokens,
                reward_mean=step.metrics.get("reward_mean"),
                ages=dict(ages),
                missing=len(missing),
                data_sha256=step.data_sha256,
            )
        )
        for lost in missing:
            self.missing[lost.topic, lost.absence] += 1
            if self.missing[lost.topic, lost.absence] <= MAX_SAMPLES:
                self.samples.append(lost)


def open_lineage(graph: VersionGraph, run: str, version: int) -> VersionLineage:
    """Returns the lineage of ``version`` without steps. Raises ``KeyError`` if the log does not hold the version."""
    ancestry = graph.ancestry(version)
    return VersionLineage(run, version, ancestry.versions, ancestry.lost_at, graph.descendants(version))
