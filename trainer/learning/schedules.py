"""The learning rate over the steps of a run, as a share of the optimiser's ``learning_rate``. Pure.

    ScheduleSettings(shape="cosine", warmup_steps=100, decay_steps=1000, final_share=0.1)

The share depends on the number of steps taken alone: a restart needs no further state, and skipped steps and sub-steps
do not change it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class RateShape(StrEnum):
    """The learning rate after the warm-up."""

    CONSTANT = "constant"
    """Constant."""
    LINEAR = "linear"
    """Linear decay to ``final_share``."""
    COSINE = "cosine"
    """Cosine decay to ``final_share``."""


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The learning rate: rises for ``warmup_steps``, decays until ``decay_steps``, then stays at ``final_share``."""

    shape: RateShape = RateShape.CONSTANT
    """Learning rate after the warm-up: ``constant``, ``linear`` or ``cosine``."""
    warmup_steps: int = 0
    """Steps of the linear warm-up: step i of w, from 1, has i / w of the learning rate."""
    decay_steps: int | None = None
    """Step at which ``final_share`` is reached, warm-up included; required for ``linear`` and ``cosine``."""
    final_share: float = 0.0
    """Share of the learning rate after the decay, in [0, 1]."""

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
        """Returns these settings; raises ``ValueError`` if the end of the decay is missing."""
        if self.shape != RateShape.CONSTANT and self.decay_steps is None:
            raise ValueError(f"the schedule {self.shape} needs decay_steps: the step at which the decay ends")
        return self


def rate_share(schedule: ScheduleSettings, steps_taken: int) -> float:
    """Returns the share of the learning rate for the step after ``steps_taken`` steps, in [0, 1].

    Raises ``ValueError`` if the end of a decaying schedule is missing.
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
