"""A reward is a versioned value: plain functions of a trajectory, their weights, and how they are combined.

    @reward(weight=0.3)
    def recall(trajectory: Trajectory) -> float:
        \"\"\"Share of the task's target documents ever seen; in [0, 1].\"\"\"

    @reward(weight=linear(0.3, 0.0, until=200))
    def kept(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
        \"\"\"1 where the user kept the edit, else 0.\"\"\"

    HELPFUL = judged("helpful", JUDGE, weight=0.5)

    EDITS = RewardSpec("edits", 1, (recall, kept, HELPFUL), feedback_window_ms=3_600_000)   # "edits@1" in every record

A spec does no I/O: what judges said is given to it. A component that cannot be computed raises :class:`Unscorable`;
the trajectory then has no total and says why, and nothing is guessed in its place.
"""

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from headrace.schemas.finite import MAX_REWARD
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.judge import Judge
from headrace.streams.rewards.schedule import Schedule

logger = logging.getLogger(__name__)

NOT_JUDGED = "not_judged"
"""Why there is no total where nobody asked the judge."""

OUT_OF_RANGE = "out_of_range"
"""Why there is no total where it, or a component, is beyond what the spec says, or what any reward may be."""

ROUNDING = 1e-9
"""A total may be this much beyond its spec's bounds, or this share of them: sums round."""

_reported: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Feedback:
    """A ``feedback.given`` about a trajectory, with its place."""

    id: str
    """Record id: the same feedback sent twice has one."""
    signal: str
    """What kind: score, edit_persisted, accepted …"""
    value: float
    """Its value, in the signal's own scale."""
    time_ms: int
    """When it was given, Unix milliseconds (log time)."""
    reference: Reference
    """Where it stands in ``feedback``."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge said of a trajectory: a value, or the label of why there is none."""

    value: float | None
    """The judge's score."""
    label: str | None = None
    """Why there is no score: ``judge_timeout``, ``judge_error``, ``judge_unreadable`` …"""
    details: Mapping[str, float] = field(default_factory=dict)
    """Score by rubric; they go on record with the component."""


ComponentFunction: TypeAlias = Callable[[Trajectory], float] | Callable[[Trajectory, Sequence[Feedback]], float]
"""The raw value of a component; raises :class:`Unscorable` where the trajectory lacks what it rests on."""

Weight: TypeAlias = float | Schedule
"""A constant, or a schedule over the policy version."""

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
    takes_feedback: bool = field(init=False)
    """Whether the function has a second parameter, for the feedback. Others with a default are its own affair."""

    def __post_init__(self) -> None:
        # Once here, and not at each call: looking at a signature takes longer than most components.
        names = [
            name
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.default is parameter.empty or name == "feedback"
        ]
        if len(names) not in (1, 2):
            raise TypeError(f"reward component {self.name!r} must take (trajectory) or (trajectory, feedback)")
        object.__setattr__(self, "takes_feedback", len(names) == 2)

    def __call__(self, trajectory: Trajectory, feedback: Sequence[Feedback] = ()) -> float:
        """The raw value, as the undecorated function gives it."""
        function = cast("Callable[..., float]", self.function)
        return function(trajectory, feedback) if self.takes_feedback else function(trajectory)

    def weight_at(self, version: int) -> float:
        """The weight for a trajectory that policy ``version`` sampled."""
        return weight_at(self.weight, version)


@dataclass(frozen=True, slots=True)
class JudgedTerm:
    """A component of a spec whose value a judge gives, outside: :meth:`RewardSpec.score` is told its verdict."""

    name: str
    """Name in ``Reward.components``, and of its verdict."""
    judge: Judge
    """Who is asked, and what."""
    weight: Weight
    """Its weight."""

    def weight_at(self, version: int) -> float:
        """The weight for a trajectory that policy ``version`` sampled."""
        return weight_at(self.weight, version)


def weight_at(weight: Weight, version: int) -> float:
    """``weight`` for a trajectory that policy ``version`` sampled."""
    return weight.at(version) if isinstance(weight, Schedule) else weight


def reward(*, weight: Weight) -> Callable[[ComponentFunction], Term]:
    """Make a function of a trajectory, or of a trajectory and its feedback, a component named like the function."""
    return lambda function: Term(cast("Any", function).__name__, function, weight)


def judged(name: str, judge: Judge, *, weight: Weight) -> JudgedTerm:
    """A component that ``judge`` scores."""
    return JudgedTerm(name, judge, weight)


def newest_version(trajectory: Trajectory) -> int:
    """The policy version that schedules go by: the newest that sampled the trajectory; 0 where none is known."""
    return max(trajectory.versions, default=0)


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
    terms: tuple[Term | JudgedTerm, ...]
    """Components, in the order they are recorded."""
    maximum: float | None = None
    """Largest possible total, where there is one. A larger one is ``out_of_range``: in a group it would move every
    member's advantage."""
    combine: Combine = weighted_sum
    """How components become the total."""
    feedback_window_ms: int = 0
    """Log time after a trajectory's end for which its reward waits for feedback, in milliseconds. 0: it is scored at
    once; feedback that comes later makes a new revision in either case."""
    minimum: float | None = None
    """Smallest possible total, where there is one; a smaller one is ``out_of_range``. ``None``: only the bound of every
    reward holds, ``MAX_REWARD``."""

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name or self.version < 1:
            raise ValueError(f"a spec needs a name without @ and a version from 1, not {self.name!r}, {self.version}")
        names = [term.name for term in self.terms]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{self.label}: its components need different names, and there must be one: {names}")
        if self.feedback_window_ms < 0:
            raise ValueError(f"{self.label}: feedback_window_ms is {self.feedback_window_ms}: it cannot be negative")
        lowest, highest = self._bounds
        if not -MAX_REWARD <= lowest <= highest <= MAX_REWARD:  # NaN is refused, too
            raise ValueError(
                f"{self.label}: its totals go from {lowest:g} to {highest:g}: the minimum may not be above the "
                f"maximum, nor either beyond {MAX_REWARD:g}"
            )

    @property
    def label(self) -> str:
        """Name and version as records carry them: ``search@1``."""
        return f"{self.name}@{self.version}"

    @property
    def judges(self) -> tuple[JudgedTerm, ...]:
        """The components that need a verdict."""
        return tuple(term for term in self.terms if isinstance(term, JudgedTerm))

    @property
    def takes_feedback(self) -> bool:
        """Whether feedback changes the score."""
        return any(isinstance(term, Term) and term.takes_feedback for term in self.terms)

    def score(
        self, trajectory: Trajectory, feedback: Sequence[Feedback] = (), verdicts: Mapping[str, Verdict] | None = None
    ) -> Score:
        """Every component of ``trajectory`` and their total, or the first reason why there is none.

        ``verdicts`` are by the name of the term. A missing verdict is ``not_judged``; a component that raises anything
        but :class:`Unscorable` is ``<name>_raised``, and logged with its traceback the first time.
        """
        version = newest_version(trajectory)
        components: dict[str, Component] = {}
        unscored: str | None = None
        for term in self.terms:
            try:
                value, details = self._evaluated(term, trajectory, feedback, verdicts or {})
                if not math.isfinite(value):
                    raise Unscorable(f"{term.name}_not_finite")
                weight = term.weight_at(version)
                if max(abs(value), abs(weight)) > MAX_REWARD:
                    raise Unscorable(OUT_OF_RANGE)
            except Unscorable as error:
                unscored = unscored or error.reason
            except Exception:  # noqa: BLE001 - a user's function: its bug must not stop every other agent's rewards
                self._report(term.name)
                unscored = unscored or f"{term.name}_raised"
            else:
                components[term.name] = Component(value=float(value), weight=weight, details=details)
        if unscored is not None:
            return Score(components, None, unscored)
        beyond = Score(components, None, OUT_OF_RANGE)
        try:
            total = self.combine(components)
            if math.isfinite(total):
                return Score(components, float(total), None) if self.allows(total) else beyond
        except Exception:  # noqa: BLE001 - a user's function too
            self._report("combine")
            return Score(components, None, "combine_raised")
        return Score(components, None, "total_not_finite")

    def allows(self, total: float) -> bool:
        """Whether ``total`` is within the spec's bounds, but for rounding, and within those of every reward."""
        lowest, highest = self._bounds
        over = max(lowest - total, total - highest)
        return over <= ROUNDING * max(1.0, abs(total)) and abs(total) <= MAX_REWARD

    @property
    def _bounds(self) -> tuple[float, float]:
        return (
            -MAX_REWARD if self.minimum is None else self.minimum,
            MAX_REWARD if self.maximum is None else self.maximum,
        )

    @staticmethod
    def _evaluated(
        term: Term | JudgedTerm, trajectory: Trajectory, feedback: Sequence[Feedback], verdicts: Mapping[str, Verdict]
    ) -> tuple[float, dict[str, float]]:
        if isinstance(term, Term):
            return term(trajectory, feedback), {}
        verdict = verdicts.get(term.name)
        if verdict is None or verdict.value is None:
            raise Unscorable((verdict and verdict.label) or NOT_JUDGED)
        return verdict.value, dict(verdict.details)

    def _report(self, name: str) -> None:
        # Once a component: a broken one raises for every trajectory, and each of their rewards says so.
        if (self.label, name) not in _reported:
            _reported.add((self.label, name))
            logger.exception(
                "reward %s: %s raised; such trajectories have no total (%s_raised)", self.label, name, name
            )
