"""The held-out split: depends on a task's id alone, so that a task is on the same side in every stage."""

from collections.abc import Iterable
from typing import TypeVar

from headrace.trainer.supervised.attempt import ScoredTrajectory, draw

Labelled = TypeVar("Labelled", bound=tuple[ScoredTrajectory, str])


def is_held_out(task_id: str, share: float) -> bool:
    """Whether the task is among the ``share`` of tasks never trained on; a larger share includes every smaller one."""
    return draw(0, "held-out", task_id) < share


def split(kept: Iterable[Labelled], share: float) -> tuple[list[Labelled], list[Labelled]]:
    """Returns ``kept`` divided into training and held-out data."""
    train: list[Labelled] = []
    held_out: list[Labelled] = []
    for labelled in kept:
        (held_out if is_held_out(labelled[0].task_id, share) else train).append(labelled)
    return train, held_out
