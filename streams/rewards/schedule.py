"""Schedules of weights over the policy version, as values that can be printed, compared and checked.

    linear(0.3, 0.0, until=200)     0.3 at version 0, 0.15 at version 100, 0 from version 200 on

A schedule depends on the policy version that sampled a trajectory, not on the time of scoring, so a replay gives the
same weights. From ``until`` on the value is exactly ``last``, so that "λ reaches 0" does not depend on rounding.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """Shape of a schedule between its first and its last value."""

    CONSTANT = "constant"
    STEP = "step"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Policy version → value: ``first`` up to ``since``, ``last`` from ``until`` on, ``shape`` in between."""

    shape: Shape
    """Shape between first and last value."""
    first: float
    """Value at version 0."""
    last: float
    """Final value."""
    since: int = 0
    """Last version with the first value."""
    until: int = 0
    """First version with the last value."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.first) and math.isfinite(self.last)):
            raise ValueError(f"a schedule goes from {self.first} to {self.last}: both must be finite")
        if self.since < 0 or self.until < self.since:
            raise ValueError(f"a schedule runs from version {self.since} to {self.until}: 0 ≤ since ≤ until is needed")

    def at(self, version: int) -> float:
        """Returns the value for policy ``version``."""
        if version >= self.until:
            return self.last
        if version <= self.since or self.shape is Shape.STEP:
            return self.first
        progress = (version - self.since) / (self.until - self.since)
        if self.shape is Shape.COSINE:
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.first + (self.last - self.first) * progress

    def __str__(self) -> str:
        """Returns the text that ``headrace reward show`` prints: ``linear 0.3 → 0 until version 200``."""
        if self.shape is Shape.CONSTANT:
            return f"{self.last:g}"
        start = f" from version {self.since}" if self.since and self.shape is not Shape.STEP else ""
        end = "at" if self.shape is Shape.STEP else "until"
        return f"{self.shape} {self.first:g} → {self.last:g}{start} {end} version {self.until}"


def constant(value: float) -> Schedule:
    """Returns a schedule with ``value`` at every version."""
    return Schedule(Shape.CONSTANT, value, value)


def step(first: float, last: float, *, at: int) -> Schedule:
    """Returns a schedule with ``first`` before version ``at`` and ``last`` from it on."""
    return Schedule(Shape.STEP, first, last, at, at)


def linear(first: float, last: float, *, until: int, since: int = 0) -> Schedule:
    """Returns a linear schedule from ``first`` at ``since`` to ``last`` at ``until``."""
    return Schedule(Shape.LINEAR, first, last, since, until)


def cosine(first: float, last: float, *, until: int, since: int = 0) -> Schedule:
    """Returns a half-cosine schedule from ``first`` at ``since`` to ``last`` at ``until``: slow at both ends."""
    return Schedule(Shape.COSINE, first, last, since, until)
