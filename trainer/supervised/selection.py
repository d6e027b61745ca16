"""A selection: the attempts that a filter keeps, and the rule by which each of the others is excluded.

Total accounting: every attempt that was read is kept as a kind, or excluded by exactly one rule.
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
"""Rules that several filters share. The rule of a defect has the defect's name."""

ExclusionRule = Callable[[ScoredTrajectory], str | None]
"""Returns the name of the rule that excludes an attempt, or ``None``."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The outcome of all attempts."""

    kept: tuple[tuple[ScoredTrajectory, str], ...] = ()
    """Attempts to imitate, each with its kind, by trajectory id."""
    excluded: tuple[tuple[ScoredTrajectory, str], ...] = ()
    """All others, each with its rule, by trajectory id."""

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of ``kept`` attempts by kind and of ``excluded`` ones by rule, largest first."""
        return {
            name: dict(Counter(label for _, label in labelled).most_common())
            for name, labelled in (("kept", self.kept), ("excluded", self.excluded))
        }


@dataclass(slots=True)
class Sieve:
    """Builds a selection: applies rules one after the other."""

    left: list[ScoredTrajectory]
    """Attempts not excluded so far."""
    excluded: list[tuple[ScoredTrajectory, str]] = field(default_factory=list)
    """Excluded attempts with their rules."""

    def apply(self, judge: ExclusionRule) -> None:
        """Exclude the attempts for which ``judge`` returns a rule."""
        verdicts = [(attempt, judge(attempt)) for attempt in self.left]
        self.left = [attempt for attempt, rule in verdicts if rule is None]
        self.excluded += [(attempt, rule) for attempt, rule in verdicts if rule is not None]

    def keep_best(self, per_task: int, rank: Callable[[ScoredTrajectory], tuple[object, ...]]) -> None:
        """Keep the first ``per_task`` attempts of each task by ``rank``, and exclude the others."""
        taken: Counter[str] = Counter()
        best = set()
        for attempt in sorted(self.left, key=rank):
            if taken[attempt.task_id] < per_task:
                taken[attempt.task_id] += 1
                best.add(attempt.trajectory_id)
        self.apply(lambda attempt: None if attempt.trajectory_id in best else ANOTHER_OF_TASK)

    def selection(self, kind_of: Callable[[ScoredTrajectory], str]) -> Selection:
        """Returns the selection, with the kinds given by ``kind_of``."""
        kept = sorted(self.left, key=lambda attempt: attempt.trajectory_id)
        excluded = sorted(self.excluded, key=lambda labelled: labelled[0].trajectory_id)
        return Selection(tuple((attempt, kind_of(attempt)) for attempt in kept), tuple(excluded))


def unusable(attempt: ScoredTrajectory) -> str | None:
    """Returns why an attempt cannot be imitated, according to its reward."""
    if attempt.purpose is Purpose.EVALUATE:
        return "evaluation"
    if attempt.role is Role.FROZEN:
        return "frozen_role"
    if (defect := blocking(attempt.defects)) is not None:
        return defect.value
    return "unscored" if attempt.total is None else None


def unfit(attempt: ScoredTrajectory, *, max_positions: int, vocabulary_size: int) -> str | None:
    """Returns why the model cannot take an attempt's tokens, according to its form."""
    if attempt.form is None:
        return UNREADABLE
    if not attempt.form.sampled_tokens:
        return NOTHING_SAMPLED
    if attempt.form.longest > max_positions:
        return TOO_LONG
    outside = attempt.form.smallest_id < 0 or attempt.form.largest_id >= vocabulary_size
    return VOCABULARY if outside else None


def newest(attempts: Iterable[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """Returns one attempt per trajectory, that of its latest reward, by trajectory id."""
    latest: dict[str, ScoredTrajectory] = {}
    for attempt in attempts:
        known = latest.get(attempt.trajectory_id)
        if known is None or attempt.revision >= known.revision:
            latest[attempt.trajectory_id] = attempt
    return [latest[name] for name in sorted(latest)]
