"""What a system offers to be sampled: numbered tasks, for training and held out, from easy to hard.

    source.training(1_000_017, level=1).task_id   →  "search-train-1000017-2hops"
    source.held_out(3).task_id                    →  "search-heldout-000003"

A task is a function of its number and level, so a sampler needs no list of tasks and no file.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

TASKS_PER_SEED = 1_000_000
"""Number of training tasks of each seed. The first million of a system's numbers is left to demonstrations."""

SEEDS = 998
"""Number of seeds whose tasks have at most nine digits; demonstrations that measure held-out loss lie above them."""


class Task(Protocol):
    """A task, whose other attributes only its system's episodes read."""

    @property
    def task_id(self) -> str:
        """Its id, the same on every machine."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the reward needs and the model must not see, and labels for analysis: ``task`` of
        ``trajectory.started``."""
        ...


TaskT_co = TypeVar("TaskT_co", bound=Task, covariant=True)


class TaskSource(Protocol[TaskT_co]):
    """The tasks of a system."""

    @property
    def levels(self) -> Sequence[str]:
        """Names of the difficulties, easy to hard: ``("1 hop", "2 hops", "3 hops")``."""
        ...

    def training(self, number: int, level: int | None = None) -> TaskT_co:
        """Return training task ``number``, of the level with that index; ``None``: of the system's usual mixture. Tasks
        of other numbers or levels have other ids. Raises ``ValueError`` for a number or level that does not exist."""
        ...

    def held_out(self, number: int) -> TaskT_co:
        """Return held-out task ``number``, which is never a training task."""
        ...


def training_number(seed: int, number: int) -> int:
    """Return the number of a seed's ``number``-th training task: seeds share none, and demonstrations use none of them.

    Raises ``ValueError`` for a seed outside [0, ``SEEDS``), or after the seed's last task.
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed {seed} is outside [0, {SEEDS}): each seed has its own million of task numbers")
    if not 0 <= number < TASKS_PER_SEED:
        raise ValueError(f"seed {seed} has {TASKS_PER_SEED:,} training tasks, and number {number:,} is none of them")
    return (seed + 1) * TASKS_PER_SEED + number
