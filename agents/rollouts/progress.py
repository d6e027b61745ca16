"""Where a sampler is: the next task, the level of the curriculum, and what became of its groups.

Joins the pure parts: positions of tasks (``config``), what the log has (``journal``), feedback on groups (``feedback``)
and the curriculum. Nothing here waits: without feedback the level stays what it is.
"""

import logging
from collections.abc import Sequence

from headrace.agents.backpressure import Backpressure
from headrace.agents.rollouts import curriculum
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.curriculum import CurriculumState, GroupResult
from headrace.agents.rollouts.feedback import DecidedGroup, GroupFeedback
from headrace.agents.rollouts.journal import Journal, Place
from headrace.agents.rollouts.rollout_metrics import RolloutMetrics, observe_sampler
from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import REWARDS, TRAINING

log = logging.getLogger(__name__)

FOLLOWED = (REWARDS, TRAINING)
"""Topics of the records for :meth:`Progress.add`, besides ``rejected``, which back-pressure reads anyway."""


class Progress:
    """A sampler's progress through its tasks and its curriculum."""

    def __init__(self, config: RolloutConfig, levels: Sequence[str], metrics: RolloutMetrics) -> None:
        """``levels``: of the tasks, easy to hard. Raises ``ValueError`` if the curriculum starts at none of them."""
        self.metrics = metrics
        """What is counted."""
        self._config = config
        self._levels = tuple(levels)
        self._attempted: set[tuple[int, int]] = set()
        self._position = 0
        self._feedback = GroupFeedback(config.curriculum.passes_at if config.curriculum else 0.5)
        self._state: CurriculumState | None = None
        if config.curriculum is not None:
            self._state = curriculum.start(config.curriculum, len(self._levels))
        self.visited: list[int] = [] if self._state is None else [self._state.level]
        """Levels at which the curriculum was, in order."""

    def restore(self, journal: Journal) -> None:
        """Skip the tasks that the run attempted, and continue at the level of the newest group."""
        self._attempted |= journal.attempted
        if self._config.curriculum is not None:
            self._moved(curriculum.resumed(journal.level, self._config.curriculum, len(self._levels)))

    @property
    def is_exhausted(self) -> bool:
        """Whether every task was attempted as often as the settings allow."""
        while (at := self._config.task_at(self._position)) is not None and at in self._attempted:
            self._position += 1
        return at is None

    def next_place(self) -> Place:
        """Return the place of the next group, whose task no group of the run attempted in this epoch; its member is 0.
        Raises ``LookupError`` if there is none."""
        at = None if self.is_exhausted else self._config.task_at(self._position)
        if at is None:
            raise LookupError(f"every task of run {self._config.run} was attempted {self._config.epochs} times")
        self._attempted.add(at)
        epoch, number = at
        level = None
        if self._state is not None and self._config.curriculum is not None:
            level = curriculum.level_of(self._state, self._config.curriculum, number=number, seed=self._config.seed)
        current = None if self._state is None else self._state.level
        return Place(self._config.sampler, number, epoch, 0, level, current)

    def began(self, group_id: str, place: Place, size: int) -> None:
        """Count a group, and follow what becomes of it."""
        self.metrics.began(place.level)
        self.followed(group_id, place, size)

    def followed(self, group_id: str, place: Place, size: int) -> None:
        """Follow what becomes of a group."""
        self._feedback.began(group_id, level=place.level, size=size)

    def add(self, record: Record) -> None:
        """Fold a record about groups; those of other samplers and runs are ignored."""
        if isinstance(record, Reward | Rejection | TrainingGroup) and record.run not in ("", self._config.run):
            return
        match self._feedback.add(record):
            case GroupResult() as result:
                passed = round(result.pass_rate * result.attempts)
                self.metrics.scored(result.level, passed, result.attempts - passed)
                if self._state is not None and self._config.curriculum is not None:
                    self._moved(curriculum.after(self._state, result, self._config.curriculum))
            case DecidedGroup(level=level, fate=fate):
                self.metrics.decided(fate, level)

    def observe(self, backpressure: Backpressure) -> None:
        """Export the gauges."""
        observe_sampler(
            lambda: {
                "headrace.rollouts.open": backpressure.open_groups,
                "headrace.rollouts.allowed": backpressure.allowed,
                "headrace.rollouts.dropped": backpressure.dropped,
                "headrace.rollouts.level": -1 if self._state is None else self._state.level,
                "headrace.rollouts.pass_rate": self._pass_rate,
            }
        )

    @property
    def _pass_rate(self) -> float:
        rate = None if self._state is None else self._state.pass_rate
        return -1.0 if rate is None else rate

    def _moved(self, state: CurriculumState) -> None:
        before, self._state = self._state, state
        if before is not None and before.level != state.level:
            self.visited.append(state.level)
            log.info(
                "run %s: tasks of level %s (before: %s, pass rate %s)",
                self._config.run,
                self._levels[state.level],
                self._levels[before.level],
                before.pass_rate,
            )
