"""Reward specs: a reward is a versioned value of plain functions of a trajectory, their weights, and a combination.

    @reward(weight=0.3)
    def recall(trajectory: Trajectory) -> float:
        \"\"\"Share of the task's target documents ever seen; in [0, 1].\"\"\"

    @reward(weight=linear(0.3, 0.0, until=200))
    def kept(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
        \"\"\"1 if the user kept the edit, else 0.\"\"\"

    HELPFUL = judged("helpful", JUDGE, weight=0.5)

    EDITS = RewardSpec("edits", 1, (recall, kept, HELPFUL), feedback_window_ms=3_600_000)   # "edits@1" in every record

A spec does no I/O; verdicts of judges are passed to it. A component that cannot be computed raises
:class:`Unscorable`; the trajectory then has no total but a reason, and no value is guessed.
"""

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from headrace.schemas.finite import MAX_REWARD
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Hint
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.interruptions import INTERRUPTIONS
from headrace.streams.rewards.hints import HintFunction, hints_of
from headrace.streams.rewards.judge import Judge
from headrace.streams.rewards.schedule import Schedule

logger = logging.getLogger(__name__)

NOT_JUDGED = "not_judged"
"""Reason for no total: the judge was not called."""

OUT_OF_RANGE = "out_of_range"
"""Reason for no total: it, or a component, exceeds the bounds of the spec or of every reward."""

ROUNDING = 1e-9
"""Absolute or relative tolerance by which a total may exceed its spec's bounds, because sums round."""

_reported: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Feedback:
    """A ``feedback.given`` about a trajectory, with its position."""

    id: str
    """Record id; duplicates have the same id."""
    signal: str
    """Kind: score, edit_persisted, accepted …"""
    value: float
    """Its value, in the signal's own scale."""
    time_ms: int
    """Timestamp of its record, Unix milliseconds (stream time)."""
    reference: Reference
    """Its position in ``feedback``."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict on a trajectory: a value, or the reason for its absence as a label."""

    value: float | None
    """The judge's score."""
    label: str | None = None
    """Reason for no score: ``judge_timeout``, ``judge_error``, ``judge_unreadable`` …"""
    details: Mapping[str, float] = field(default_factory=dict)
    """Score by rubric; recorded with the component."""


ComponentFunction: TypeAlias = Callable[[Trajectory], float] | Callable[[Trajectory, Sequence[Feedback]], float]
"""Returns the raw value of a component. Raises :class:`Unscorable` if the trajectory lacks the required data."""

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
    """A component of a spec: a function with the name and the weight under which it is recorded."""

    name: str
    """Name in ``Reward.components``."""
    function: ComponentFunction
    """Raw value."""
    weight: Weight
    """Its weight."""
    details: Callable[[Trajectory], Mapping[str, float]] | None = None
    """Figures that are recorded with the component and do not count, such as scores by rubric that the environment
    recorded; ``None``: there are none."""
    takes_feedback: bool = field(init=False)
    """Whether the function has a second parameter, for the feedback. Parameters with a default are ignored."""

    def __post_init__(self) -> None:
        # Computed once, because inspecting a signature takes longer than most components.
        names = [
            name
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.default is parameter.empty or name == "feedback"
        ]
        if len(names) not in (1, 2):
            raise TypeError(f"reward component {self.name!r} must take (trajectory) or (trajectory, feedback)")
        object.__setattr__(self, "takes_feedback", len(names) == 2)

    def __call__(self, trajectory: Trajectory, feedback: Sequence[Feedback] = ()) -> float:
        """Returns the raw value, as the undecorated function does."""
        function = cast("Callable[..., float]", self.function)
        return function(trajectory, feedback) if self.takes_feedback else function(trajectory)

    def weight_at(self, version: int) -> float:
        """Returns the weight for a trajectory that policy ``version`` sampled."""
        return weight_at(self.weight, version)


@dataclass(frozen=True, slots=True)
class JudgedTerm:
    """A component of a spec whose value comes from a judge; :meth:`RewardSpec.score` gets its verdict."""

    name: str
    """Name in ``Reward.components``, and of its verdict."""
    judge: Judge
    """The judge with its rubrics."""
    weight: Weight
    """Its weight."""

    def weight_at(self, version: int) -> float:
        """Returns the weight for a trajectory that policy ``version`` sampled."""
        return weight_at(self.weight, version)


def weight_at(weight: Weight, version: int) -> float:
    """Returns ``weight`` for a trajectory that policy ``version`` sampled."""
    return weight.at(version) if isinstance(weight, Schedule) else weight


def reward(
    *, weight: Weight, details: Callable[[Trajectory], Mapping[str, float]] | None = None
) -> Callable[[ComponentFunction], Term]:
    """Decorator that turns a function of a trajectory, or of a trajectory and its feedback, into a component of the
    same name. ``details``: as in :class:`Term`.
    """
    return lambda function: Term(cast("Any", function).__name__, function, weight, details)


def judged(name: str, judge: Judge, *, weight: Weight) -> JudgedTerm:
    """Returns a component that ``judge`` scores."""
    return JudgedTerm(name, judge, weight)


def newest_version(trajectory: Trajectory) -> int:
    """Returns the policy version that schedules use: the newest that sampled the trajectory; 0 if none is known."""
    return max(trajectory.versions, default=0)


def weighted_sum(components: Mapping[str, Component]) -> float:
    """Returns Σ weight · value."""
    return sum(component.weight * component.value for component in components.values())


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a trajectory under a spec."""

    components: dict[str, Component]
    """Every component that could be computed."""
    total: float | None
    """The reward; ``None`` if it could not be computed."""
    unscored: str | None
    """Reason for no total."""
    hints: list[Hint] = field(default_factory=list)
    """Hints for turns."""
    hints_refused: dict[str, int] = field(default_factory=dict)
    """Number of hints that were refused, by reason."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One version of one reward. Any change to it requires a new version."""

    name: str
    """Name: ``search``."""
    version: int
    """Version, from 1."""
    terms: tuple[Term | JudgedTerm, ...]
    """Components, in recorded order."""
    maximum: float | None = None
    """Largest possible total, if there is one. A larger total is ``out_of_range``, because it would shift the advantage
    of every member of its group."""
    combine: Combine = weighted_sum
    """Function from the components to the total."""
    feedback_window_ms: int = 0
    """Milliseconds of stream time after a trajectory's end for which its reward waits for feedback. 0: it is scored
    immediately. In either case, later feedback makes a new revision."""
    minimum: float | None = None
    """Smallest possible total, if there is one; a smaller total is ``out_of_range``. ``None``: only the bound of every
    reward, ``MAX_REWARD``, applies."""
    hints: HintFunction | None = None
    """Gives hints for turns that went wrong, which do not affect the total; ``None``: none."""
    label: str = field(init=False, repr=False, compare=False)
    """Name and version, as in records: ``search@1``."""
    judges: tuple[JudgedTerm, ...] = field(init=False, repr=False, compare=False)
    """Components that need a verdict."""
    takes_feedback: bool = field(init=False, repr=False, compare=False)
    """Whether feedback changes the score."""

    def __post_init__(self) -> None:
        # Computed once, because every trajectory is compared with them.
        object.__setattr__(self, "label", f"{self.name}@{self.version}")
        judges = tuple(term for term in self.terms if isinstance(term, JudgedTerm))
        object.__setattr__(self, "judges", judges)
        takes_feedback = any(isinstance(term, Term) and term.takes_feedback for term in self.terms)
        object.__setattr__(self, "takes_feedback", takes_feedback)
        if not self.name or "@" in self.name or self.version < 1:
            raise ValueError(f"a spec needs a name without @ and a version from 1, not {self.name!r}, {self.version}")
        names = [term.name for term in self.terms]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{self.label}: it needs at least one component, and different names for all: {names}")
        if self.feedback_window_ms < 0:
            raise ValueError(f"{self.label}: feedback_window_ms is {self.feedback_window_ms}: it cannot be negative")
        lowest, highest = self._bounds
        if not -MAX_REWARD <= lowest <= highest <= MAX_REWARD:  # also refuses NaN
            raise ValueError(
                f"{self.label}: its totals go from {lowest:g} to {highest:g}: the minimum may not be above the "
                f"maximum, nor either beyond {MAX_REWARD:g}"
            )

    def score(
        self,
        trajectory: Trajectory,
        feedback: Sequence[Feedback] = (),
        verdicts: Mapping[str, Verdict] | None = None,
        *,
        make: type[Component] = Component,
    ) -> Score:
        """Returns every component of ``trajectory`` and their total, or the first reason for no total.

        The total is r_i of the advantage, whose whole formula is in ``trainer/batches/advantages.py``.

        ``verdicts`` are by the name of the term. A missing verdict gives ``not_judged``; a component that raises
        anything but :class:`Unscorable`, also ``SystemExit``, gives ``<name>_raised``, and its first traceback is
        logged. ``KeyboardInterrupt`` and a cancellation are raised. ``make``: ``Component``, or a struct with its
        fields.
        """
        scored = self._scored(trajectory, feedback, verdicts, make)
        if self.hints is None:
            return scored
        hints, refused = hints_of(self.hints, trajectory, spec=self.label)
        return replace(scored, hints=hints, hints_refused=refused)

    def _scored(
        self,
        trajectory: Trajectory,
        feedback: Sequence[Feedback],
        verdicts: Mapping[str, Verdict] | None,
        make: type[Component],
    ) -> Score:
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
            except INTERRUPTIONS:
                raise
            except BaseException:  # noqa: BLE001 - a user's function must not stop the rewards of other agents
                self._report(term.name)
                unscored = unscored or f"{term.name}_raised"
            else:
                components[term.name] = make(value=float(value), weight=float(weight), details=details)
        if unscored is not None:
            return Score(components, None, unscored)
        beyond = Score(components, None, OUT_OF_RANGE)
        try:
            total = self.combine(components)
            if math.isfinite(total):
                return Score(components, float(total), None) if self.allows(total) else beyond
        except INTERRUPTIONS:
            raise
        except BaseException:  # noqa: BLE001 - also a user's function
            self._report("combine")
            return Score(components, None, "combine_raised")
        return Score(components, None, "total_not_finite")

    def allows(self, total: float) -> bool:
        """Whether ``total`` is within the spec's bounds, up to rounding, and within those of every reward."""
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
            return term(trajectory, feedback), dict(term.details(trajectory)) if term.details else {}
        verdict = verdicts.get(term.name)
        if verdict is None or verdict.value is None:
            raise Unscorable((verdict and verdict.label) or NOT_JUDGED)
        return verdict.value, dict(verdict.details)

    def _report(self, name: str) -> None:
        # Logged once per component: a broken one raises for every trajectory, and every reward has the label.
        if (self.label, name) not in _reported:
            _reported.add((self.label, name))
            logger.exception(
                "reward %s: %s raised; such trajectories have no total (%s_raised)", self.label, name, name
            )
