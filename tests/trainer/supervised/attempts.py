"""Attempts as input of the filters."""

from typing import Any

from headrace.schemas.events import EndStatus
from headrace.trainer.supervised.attempt import Form, ScoredTrajectory


def form(**changes: Any) -> Form:
    values = {
        "sampled_tokens": 10,
        "longest": 30,
        "smallest_id": 0,
        "largest_id": 40,
        "invalid_calls": 0,
        "unfinished_calls": 0,
        "sampled_sha256": "",
    }
    return Form(**{**values, **changes})


def attempt(
    name: str, *, task: str | None = None, recalls: tuple[float, float] | None = None, **changes: Any
) -> ScoredTrajectory:
    """A completed attempt at a task of its own; ``recalls`` of the trajectory and of the answer."""
    shown = {} if recalls is None else {"trajectory_recall": recalls[0], "output_recall": recalls[1]}
    values: dict[str, Any] = {
        "group_id": None,
        "total": 1.0,
        "maximum": 1.0,
        "components": shown,
        "status": EndStatus.COMPLETED,
        "form": form(sampled_sha256=name),
    }
    return ScoredTrajectory(
        trajectory_id=name, place=(0, 0), task_id=task or f"task of {name}", **{**values, **changes}
    )
