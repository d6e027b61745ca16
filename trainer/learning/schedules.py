"""The learning rate over the steps of a run, as a share of the optimiser's ``learning_rate``. Pure.

    ScheduleSettings(shape="cosine", warmup_steps=100, decay_steps=1000, final_share=0.1)

The share follows from the number of steps taken alone: a restart needs no state of it, and a step that is skipped or
divided into sub-steps moves nothing.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class RateShape(StrEnum):
    """How the learning rate goes on after the warm-up."""

    CONSTANT = "constant"
    """It stays."""
    LINEAR = "linear"
    """In a straight line down to ``final_share``."""
    COSINE = "cosine"
    """In half a cosine down to ``final_share``."""


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The learning rate's way: up in ``warmup_steps``, down in ``decay_steps``, then on at ``final_share``."""

    shape: RateShape = RateShape.CONSTANT
    """How it goes on after the warm-up: ``constant``, ``linear`` or ``cosine``."""
    warmup_steps: int = 0
    """Steps in which it rises in a straight line: step i of w, from 1, has i / w of it."""
    decay_steps: int | None = None
    """Step at which ``final_share`` is reached, the warm-up's steps counted; ``linear`` and ``cosine`` need it."""
    final_share: float = 0.0
    """Share of the learning rate that is left then, in [0, 1]."""

    def __post_init__(self) -> None:
        if self.shape not in list(RateShape):
            raise ValueError(f"shape of the schedule is {self.shape!r}: choose one of {', '.join(RateShape)}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps is {self.warmup_steps}: it must not be negative")
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"final_share is {self.final_share}: it must be between 0 and 1")
        if self.shape == RateShape.CONSTANT and self.decay_steps is not None:
            raise ValueError("decay_steps is for the shapes linear and cosine: a constant learning rate does not decay")
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps is {self.decay_steps}: it must be above warmup_steps, {self.warmup_steps}")

    def checked(self) -> "ScheduleSettings":
        """These settings; raises ``ValueError`` where they do not say when the decay ends."""
        if self.shape != RateShape.CONSTANT and self.decay_steps is None:
            raise ValueError(f"the schedule {self.shape} needs decay_steps: the step at which it has come down")
        return self


def rate_share(schedule: ScheduleSettings, steps_taken: int) -> float:
    """Share of the learning rate for the step after ``steps_taken`` steps; in [0, 1].

    Raises ``ValueError`` where a schedule that comes down does not say by when.
    """
    if steps_taken < schedule.warmup_steps:
        return (steps_taken + 1) / schedule.warmup_steps
    if schedule.shape == RateShape.CONSTANT:
        return 1.0
    end = schedule.checked().decay_steps
    assert end is not None
    done = min((steps_taken - schedule.warmup_steps) / (end - schedule.warmup_steps), 1.0)
    left = 1 - done if schedule.shape == RateShape.LINEAR else 0.5 * (1 + math.cos(math.pi * done))
    return schedule.final_share + (1 - schedule.final_share) * left
