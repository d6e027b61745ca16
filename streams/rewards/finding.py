"""Findings, samples and limits of a reward check."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import Feedback


class Problem(StrEnum):
    """Kinds of findings."""

    NO_SAMPLES = "no_samples"
    RAISES = "raises"
    NOT_FINITE = "not_finite"
    NOT_DETERMINISTIC = "not_deterministic"
    READS_CLOCK = "reads_clock"
    READS_RANDOM = "reads_random"
    CHANGES_TRAJECTORY = "changes_trajectory"
    OVER_MAXIMUM = "over_maximum"
    UNDER_MINIMUM = "under_minimum"
    NEVER_SCORES = "never_scores"
    CONSTANT = "constant"
    NO_DIFFERENCE_IN_GROUPS = "no_difference_in_groups"
    NEVER_REACHED = "never_reached"
    FOLLOWS_LENGTH = "follows_length"
    SLOW = "slow"
    NEVER_NONZERO = "never_nonzero"
    COMPONENT_CONSTANT = "component_constant"
    PLANS_NOTHING = "plans_nothing"
    NO_DOCSTRING = "no_docstring"
    NO_ANNOTATION = "no_annotation"
    FEW_SAMPLES = "few_samples"


WORTH_A_LOOK = frozenset(
    {
        Problem.NEVER_NONZERO,
        Problem.COMPONENT_CONSTANT,
        Problem.PLANS_NOTHING,
        Problem.NO_DOCSTRING,
        Problem.NO_ANNOTATION,
        Problem.FEW_SAMPLES,
    }
)
"""Findings that may be intended, for example a penalty that no attempt has incurred yet. The others are errors."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a reward."""

    problem: Problem
    """Its kind."""
    component: str | None
    """The component; ``None`` for the total."""
    says: str
    """Description."""
    trajectory: str | None = None
    """A trajectory that shows it."""
    do: str = ""
    """Remedy."""

    @property
    def wrong(self) -> bool:
        """Whether it should keep the spec out of a training run."""
        return self.problem not in WORTH_A_LOOK


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory to run a reward on."""

    trajectory: Trajectory
    """The recorded trajectory."""
    feedback: Sequence[Feedback] = ()
    """Its feedback, in the order of the topic."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Thresholds of a check."""

    ms: float = 2.0
    """Longest time per trajectory in milliseconds; with 2 ms a process scores 500 per second."""
    correlation: float = 0.8
    """Largest ``|r|`` between reward and length."""
    planned_versions: int | None = None
    """Number of policy versions of the planned training run, if known: every schedule must end within it."""
    few: int = 10
    """Number of samples below which values are not judged."""
