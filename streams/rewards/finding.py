"""What a check of a reward can find, and what it looks at."""

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
"""Findings that can be right: a penalty that nobody has earned yet, say. The others are wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    problem: Problem
    """What kind."""
    component: str | None
    """The component; ``None`` for the total."""
    says: str
    """What was seen."""
    trajectory: str | None = None
    """A trajectory that shows it."""
    do: str = ""
    """What to do about it."""

    @property
    def wrong(self) -> bool:
        """Whether it should keep the spec out of a training run."""
        return self.problem not in WORTH_A_LOOK


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory to try a reward on."""

    trajectory: Trajectory
    """As recorded."""
    feedback: Sequence[Feedback] = ()
    """What was said of it, in the log's order."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Where a check draws its lines."""

    ms: float = 2.0
    """Longest time a trajectory may take, in milliseconds: 2 ms let one process score 500 a second."""
    correlation: float = 0.8
    """Largest ``|r|`` between reward and length."""
    planned_versions: int | None = None
    """Policy versions that the training run will make, where known: every schedule must end within them."""
    few: int = 10
    """Samples below which values say little."""
