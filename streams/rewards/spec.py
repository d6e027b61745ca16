"""A reward is a versioned value: plain functions of a trajectory, their weights, and how they are combined.

    @reward(weight=0.3)
    def recall(trajectory: Trajectory) -> float:
        \"\"\"Share of the task's target documents ever seen; in [0, 1].\"\"\"

    SEARCH = RewardSpec("search", 1, (f_beta, recall), maximum=1.0)      # "search@1" in every record

A weight may follow a schedule of the policy version. A component that cannot be computed raises
:class:`Unscorable`; the trajectory then has no total and says why, and nothing is guessed in its place.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headrace.schemas.records import Component, Trajectory

ComponentFunction: TypeAlias = Callable[[Trajectory], float]
"""The raw value of a component; raises :class:`Unscorable` where the trajectory lacks what it rests on."""

Weight: TypeAlias = float | Callable[[int], float]
"""A constant, or a schedule: policy version → weight."""

Combine: TypeAlias = Callable[[Mapping[str, Component]], float]
"""Components by name → total."""


class Unscorable(Exception):
    """A component has no value for this trajectory. ``reason`` is a stable label: ``no_targets`` …"""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Term:
    """A component of a spec: a function with the name and the weight that it is recorded under."""

    name: str
    """Name in ``Reward.components``."""
    function: ComponentFunction
    """Raw value."""
    weight: Weight
    """Its weight."""

    def __call__(self, trajectory: Trajectory) -> float:
        """The raw value, as the undecorated function gives it."""
        return self.function(trajectory)

    def weight_at(self, version: int) -> float:
        """The weight for a trajectory that policy ``version`` sampled."""
        return self.weight(version) if callable(self.weight) else self.weight


def reward(*, weight: Weight) -> Callable[[ComponentFunction], Term]:
    """Make a function of a trajectory a component, named like the function."""
    return lambda function: Term(function.__name__, function, weight)


def weighted_sum(components: Mapping[str, Component]) -> float:
    """Σ weight · value."""
    return sum(component.weight * component.value for component in components.values())


@dataclass(frozen=True, slots=True)
class Score:
    """What a spec says of a trajectory."""

    components: dict[str, Component]
    """Every component that could be computed."""
    total: float | None
    """The reward; ``None`` where it could not be computed."""
    unscored: str | None
    """Why there is no total."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One version of one reward. Change anything in it and the version must change too."""

    name: str
    """Name: ``search``."""
    version: int
    """Version, from 1."""
    terms: tuple[Term, ...]
    """Components, in the order they are recorded."""
    maximum: float | None = None
    """Largest possible total, where there is one."""
    combine: Combine = weighted_sum
    """How components become the total."""

    @property
    def label(self) -> str:
        """Name and version as records carry them: ``search@1``."""
        return f"{self.name}@{self.version}"

    def score(self, trajectory: Trajectory) -> Score:
        """Every component of ``trajectory`` and their total, or the first reason why there is none."""
        version = max(trajectory.versions, default=0)
        components: dict[str, Component] = {}
        unscored: str | None = None
        for term in self.terms:
            try:
                value = term(trajectory)
                if not math.isfinite(value):
                    raise Unscorable(f"{term.name}_not_finite")
            except Unscorable as error:
                unscored = unscored or error.reason
            else:
                components[term.name] = Component(value=value, weight=term.weight_at(version))
        total = None if unscored else self.combine(components)
        return Score(components, total, unscored)
