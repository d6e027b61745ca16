"""A selection: what a filter keeps to imitate, and by which rule each of the others was left out.

Total accounting: every attempt that was looked at is kept under a kind or excluded by exactly one rule.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.schemas.events import Purpose, Role
from headrace.trainer.supervised.attempt import ScoredTrajectory, blocking

UNREADABLE = "unresolved"
TOO_LONG = "too_long"
VOCABULARY = "vocabulary"
NOTHING_SAMPLED = "nothing_sampled"
MALFORMED = "malformed"
ANOTHER_OF_TASK = "another_of_its_task"
"""Rules that several filters share. A defect's rule has the defect's name."""

ExclusionRule = Callable[[ScoredTrajectory], str | None]
"""The rule by which an attempt is excluded, or ``None``."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What becomes of the attempts."""

    kept: tuple[tuple[ScoredTrajectory, str], ...] = ()
    """Attempts to imitate, each with the kind it was kept as, by trajectory id."""
    excluded: tuple[tuple[ScoredTrajectory, str], ...] = ()
    """All others, each with its rule, by trajectory id."""

    def counts(self) -> dict[str, dict[str, int]]:
        """How many were ``kept`` by kind and ``excluded`` by rule, most first."""
        return {
            name: dict(Counter(label for _, label in labelled).most_common())
            for name, labelled in (("kept", self.kept), ("excluded", self.excluded))
        }


@dataclass(slots=True)
class Sieve:
    """A selection in the making: rules take attempts away one after the other."""

    left: list[ScoredTrajectory]
    """Attempts that no rule has excluded yet."""
    excluded: list[tuple[ScoredTrajectory, str]] = field(default_factory=list)
    """Attempts with their rules."""

    def apply(self, judge: ExclusionRule) -> None:
        """Exclude what ``judge`` names a rule for."""
        verdicts = [(attempt, judge(attempt)) for attempt in self.left]
        self.left = [attempt for attempt, rule in verdicts if rule is None]
        self.excluded += [(attempt, rule) for attempt, rule in verdicts if rule is not None]

    def keep_best(self, per_task: int, rank: Callable[[ScoredTrajectory], tuple[object, ...]]) -> None:
        """Of each task, exclude all but the ``per_task`` attempts that come first by ``rank``."""
        taken: Counter[str] = Counter()
        best = set()
        for attempt in sorted(self.left, key=rank):
            if taken[attempt.task_id] < per_task:
                taken[attempt.task_id] += 1
                best.add(attempt.trajectory_id)
        self.apply(lambda attempt: None if attempt.trajectory_id in best else ANOTHER_OF_TASK)

    def selection(self, kind_of: Callable[[ScoredTrajectory], str]) -> Selection:
        """What is left, each as the kind that ``kind_of`` names."""
        kept = sorted(self.left, key=lambda attempt: attempt.trajectory_id)
        excluded = sorted(self.excluded, key=lambda labelled: labelled[0].trajectory_id)
        return Selection(tuple((attempt, kind_of(attempt)) for attempt in kept), tuple(excluded))


def unusable(attempt: ScoredTrajectory) -> str | None:
    """Why an attempt cannot be imitated, as far as its reward tells."""
    if attempt.purpose is Purpose.EVALUATE:
        return "evaluation"
    if attempt.role is Role.FROZEN:
        return "frozen_role"
    if (defect := blocking(attempt.defects)) is not None:
        return defect.value
    return "unscored" if attempt.total is None else None


def unfit(attempt: ScoredTrajectory, *, max_positions: int, vocabulary_size: int) -> str | None:
    """Why the model cannot take an attempt's tokens, as far as its record's form tells."""
    if attempt.form is None:
        return UNREADABLE
    if not attempt.form.sampled_tokens:
        return NOTHING_SAMPLED
    if attempt.form.longest > max_positions:
        return TOO_LONG
    outside = attempt.form.smallest_id < 0 or attempt.form.largest_id >= vocabulary_size
    return VOCABULARY if outside else None


def newest(attempts: Iterable[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """One attempt a trajectory, that of its latest reward, by trajectory id."""
    latest: dict[str, ScoredTrajectory] = {}
    for attempt in attempts:
        known = latest.get(attempt.trajectory_id)
        if known is None or attempt.revision >= known.revision:
            latest[attempt.trajectory_id] = attempt
    return [latest[name] for name in sorted(latest)]
