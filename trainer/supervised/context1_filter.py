"""The filter of Context-1's supervised warm-up (Chroma): selects the trajectories that a base model imitates first.

    recall of the trajectory > 0.5 and of the answer > 0.4      kept in full
    lower                                                       kept at a decreasing rate
    none at all                                                 negatives, at most 5 % of what is kept
    trajectory far above answer                                 excluded: the evidence was found and not used
    malformed                                                   excluded
    more than one of a task                                     the best is kept

The form of the rate and the definitions of "far above" and "malformed" are not published: here they are settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.schemas.events import EndStatus
from headrace.trainer.supervised.attempt import ScoredTrajectory, draw
from headrace.trainer.supervised.selection import MALFORMED, Selection, Sieve

FULL, LOW, NEGATIVE = "full", "low_recall", "negative"
"""Kinds of kept attempts."""

NO_RECALL = "no_recall"
RECALL_GAP = "recall_gap"
LOW_RECALL = "low_recall"
TOO_MANY_NEGATIVES = "too_many_negatives"
"""Rules by which an attempt is excluded."""


@dataclass(frozen=True, slots=True)
class Context1Filter:
    """Bounds of the filter."""

    trajectory_recall: float = 0.5
    """Recall of the trajectory above which it is always kept. Published value."""
    output_recall: float = 0.4
    """Recall of the answer above which it is always kept. Published value."""
    low_power: float = 2.0
    """Below these recalls, the rate of keeping is the mean of both recalls as shares of their bounds, to this power."""
    negative_share: float = 0.05
    """Largest share of trajectories without any recall among those kept. Published value."""
    max_gap: float = 0.5
    """Difference of the trajectory's and the answer's recall above which the trajectory is excluded."""
    per_task: int = 1
    """Trajectories per task. Published value."""
    seed: int = 0
    """Seed of the draw among those with lower recall."""

    def __post_init__(self) -> None:
        for name in ("trajectory_recall", "output_recall"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be between 0 and 1")
        if not 0 <= self.negative_share < 1 or not 0 <= self.max_gap <= 1:
            raise ValueError("negative_share must be in [0, 1) and max_gap in [0, 1]")
        if self.low_power <= 0 or self.per_task < 1:
            raise ValueError("low_power must be above 0 and per_task at least 1")

    def rate(self, trajectory_recall: float, output_recall: float) -> float:
        """Returns the probability with which an attempt with some recall is kept, in [0, 1]."""
        if trajectory_recall > self.trajectory_recall and output_recall > self.output_recall:
            return 1.0
        shares = (
            min(1.0, trajectory_recall / self.trajectory_recall),
            min(1.0, output_recall / self.output_recall),
        )
        return float((sum(shares) / 2) ** self.low_power)

    def select(self, attempts: Sequence[ScoredTrajectory]) -> Selection:
        """Select the ``attempts`` to imitate. Each must have its form; their order does not matter."""
        sieve = Sieve(list(attempts))
        sieve.apply(lambda attempt: MALFORMED if _is_malformed(attempt) else None)
        sieve.apply(lambda attempt: None if _has_recalls(attempt) else NO_RECALL)
        sieve.apply(lambda attempt: RECALL_GAP if _trajectory(attempt) - _output(attempt) > self.max_gap else None)
        sieve.apply(lambda attempt: None if self._is_drawn(attempt) else LOW_RECALL)
        sieve.keep_best(self.per_task, self._rank)
        self._limit_negatives(sieve)
        return sieve.selection(self._kind)

    def _kind(self, attempt: ScoredTrajectory) -> str:
        if _is_negative(attempt):
            return NEGATIVE
        return FULL if self.rate(_trajectory(attempt), _output(attempt)) == 1 else LOW

    def _is_drawn(self, attempt: ScoredTrajectory) -> bool:
        if _is_negative(attempt):
            return True  # their number is limited instead
        rate = self.rate(_trajectory(attempt), _output(attempt))
        return draw(self.seed, "low", attempt.trajectory_id) < rate

    def _rank(self, attempt: ScoredTrajectory) -> tuple[object, ...]:
        """Returns the sorting key, best first."""
        kinds = (FULL, LOW, NEGATIVE)
        recalls = (-_output(attempt), -_trajectory(attempt))
        return kinds.index(self._kind(attempt)), *recalls, attempt.turns, attempt.trajectory_id

    def _limit_negatives(self, sieve: Sieve) -> None:
        negatives = [attempt for attempt in sieve.left if _is_negative(attempt)]
        others = len(sieve.left) - len(negatives)
        allowed = int(others * self.negative_share / (1 - self.negative_share))
        negatives.sort(key=lambda attempt: draw(self.seed, "negative", attempt.trajectory_id))
        over = {attempt.trajectory_id for attempt in negatives[allowed:]}
        sieve.apply(lambda attempt: TOO_MANY_NEGATIVES if attempt.trajectory_id in over else None)


def _trajectory(attempt: ScoredTrajectory) -> float:
    return attempt.components["trajectory_recall"]


def _output(attempt: ScoredTrajectory) -> float:
    return attempt.components["output_recall"]


def _has_recalls(attempt: ScoredTrajectory) -> bool:
    return {"trajectory_recall", "output_recall"} <= attempt.components.keys()


def _is_negative(attempt: ScoredTrajectory) -> bool:
    return _trajectory(attempt) == 0


def _is_malformed(attempt: ScoredTrajectory) -> bool:
    """Whether it did not complete, called a tool with invalid arguments, or has a call without a result."""
    form = attempt.form
    return (
        attempt.status is not EndStatus.COMPLETED or form is None or form.invalid_calls > 0 or form.unfinished_calls > 0
    )
