"""The curriculum: tasks become harder as the policy's measured pass rate rises, and easier again if it falls. Pure.

    settings = CurriculumSettings(raise_at=0.7, lower_at=0.1, window=16)
    state = after(start(settings, levels=3), GroupResult(level=0, pass_rate=0.75), settings)
    level_of(state, settings, number=17, seed=0)   →  0

A level is an index into the levels of a task source, easy to hard. The pass rate is that of the policy's own recent
groups at the current level. Between the two thresholds nothing moves (hysteresis), and after a move the evidence is
collected anew, so that one good or bad stretch moves at most one level.
"""

from dataclasses import dataclass, replace
from random import Random


@dataclass(frozen=True, slots=True)
class CurriculumSettings:
    """Settings of a curriculum."""

    first: int = 0
    """Level at the start of a run."""
    raise_at: float = 0.7
    """Pass rate at the current level from which tasks become harder."""
    lower_at: float = 0.1
    """Pass rate at the current level up to which tasks become easier; below ``raise_at``."""
    window: int = 16
    """Number of the latest groups of the level whose mean pass rate counts; as many are awaited before a move."""
    passes_at: float = 0.5
    """Reward, as a share of its maximum, from which an attempt has passed."""
    review: float = 0.2
    """Share of groups that are drawn from the easier levels, so that what was learnt there is not lost."""

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first is {self.first}: expected the index of a level, 0 or more")
        if not 0 <= self.lower_at < self.raise_at <= 1:
            raise ValueError(
                f"lower_at is {self.lower_at} and raise_at {self.raise_at}: expected 0 ≤ lower_at < raise_at ≤ 1"
            )
        if self.window < 1:
            raise ValueError(f"window is {self.window}: expected at least 1 group")
        if not 0 < self.passes_at <= 1:
            raise ValueError(f"passes_at is {self.passes_at}: expected a share of the maximum, above 0 and at most 1")
        if not 0 <= self.review < 1:
            raise ValueError(f"review is {self.review}: expected a share of the groups, at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What a group's attempts achieved."""

    level: int | None
    """Level of its task; ``None`` without a curriculum."""
    pass_rate: float
    """Share of its scored attempts that passed, in [0, 1]."""
    attempts: int = 1
    """Number of its scored attempts."""


@dataclass(frozen=True, slots=True)
class CurriculumState:
    """Where a run is in its curriculum."""

    level: int
    """Current level."""
    levels: int
    """Number of levels."""
    rates: tuple[float, ...] = ()
    """Pass rates of the latest groups of this level, at most ``window``, since the latest move."""

    @property
    def pass_rate(self) -> float | None:
        """Mean pass rate at this level since the latest move; ``None`` before the first result."""
        return sum(self.rates) / len(self.rates) if self.rates else None


def start(settings: CurriculumSettings, levels: int) -> CurriculumState:
    """Return the state at the start of a run on ``levels`` levels. Raises ``ValueError`` if ``first`` is none of
    them."""
    if settings.first >= levels:
        raise ValueError(f"the curriculum's first level is {settings.first}, and the tasks have {levels} levels")
    return CurriculumState(settings.first, levels)


def resumed(level: int | None, settings: CurriculumSettings, levels: int) -> CurriculumState:
    """Return the state of a restarted sampler: at ``level``, that of the run's newest group in the log, with evidence
    to be collected anew; at the start if there is none, or if the tasks have no such level any more."""
    if level is None or not 0 <= level < levels:
        return start(settings, levels)
    return CurriculumState(level, levels)


def after(state: CurriculumState, result: GroupResult, settings: CurriculumSettings) -> CurriculumState:
    """Return the state after the result of a group. Results of other levels change nothing."""
    if result.level != state.level:
        return state
    rates = (*state.rates, result.pass_rate)[-settings.window :]
    if len(rates) < settings.window:
        return replace(state, rates=rates)
    rate = sum(rates) / len(rates)
    if rate >= settings.raise_at and state.level + 1 < state.levels:
        return CurriculumState(state.level + 1, state.levels)
    if rate <= settings.lower_at and state.level > 0:
        return CurriculumState(state.level - 1, state.levels)
    return replace(state, rates=rates)


def level_of(state: CurriculumState, settings: CurriculumSettings, *, number: int, seed: int) -> int:
    """Return the level of the group with the ``number``-th task: the current one or, for a share ``review`` of the
    numbers, an easier one. It depends on nothing but its arguments."""
    # A string is hashed by SHA-512: stable across Python versions and unrelated for neighbouring numbers.
    rng = Random(f"headrace/curriculum/{seed}/{number}")
    if state.level and rng.random() < settings.review:
        return rng.randrange(state.level)
    return state.level
