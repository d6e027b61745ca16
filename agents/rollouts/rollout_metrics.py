"""What a sampler did: counts for its report, and the same through OpenTelemetry. Every name is declared here, once.

Without a metric reader (``deploy/processes/telemetry.py`` sets one up) the instruments do nothing; the report is always
complete.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation, get_meter

METER = "headrace.rollouts"

GAUGES: Mapping[str, tuple[str, str]] = {
    "headrace.rollouts.open": ("{group}", "Open groups of the sampler."),
    "headrace.rollouts.allowed": ("{group}", "Largest number of open groups at present."),
    "headrace.rollouts.dropped": ("{group}", "Places of groups without a gradient, empty until the next version."),
    "headrace.rollouts.level": ("{level}", "Level of the curriculum; -1 without one."),
    "headrace.rollouts.pass_rate": ("1", "Mean pass rate at this level since the latest move; -1 if unknown."),
}
"""Name → unit and description of what is read on collection."""

UNLEVELLED = "mixture"
"""Name of the level of groups without one."""


class AttemptEnd(StrEnum):
    """How an attempt of the sampler ended."""

    MADE = "made"
    FAILED = "failed"
    """Because of the engine."""


class Restored(StrEnum):
    """What a restarted sampler did with a member of a group of its predecessor."""

    KEPT = "kept"
    """It had ended: it is not made again."""
    RESUMED = "resumed"
    REPLACED = "replaced"
    ADDED = "added"
    """It had not begun."""
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class SamplingReport:
    """What a sampler did between its start and its end."""

    groups: int = 0
    """Groups begun; groups of a predecessor are not counted."""
    groups_by_level: Mapping[str, int] = field(default_factory=dict)
    """The same by level of the task."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Attempts by :class:`AttemptEnd`."""
    restored: Mapping[str, int] = field(default_factory=dict)
    """Members of groups of a predecessor, by :class:`Restored`."""
    levels: tuple[str, ...] = ()
    """The levels of the curriculum in the order in which it was at them; empty without one."""
    pass_rates: Mapping[str, float] = field(default_factory=dict)
    """Share of attempts that passed, by level, over all complete groups."""
    fates: Mapping[str, int] = field(default_factory=dict)
    """Groups by what grouping made of them: ``gradient``, ``zero_variance_all_fail`` …; as far as it was known."""
    seconds: float = 0.0
    """Duration."""
    waited_s: float = 0.0
    """How long no group might begin, because of the budget."""
    is_exhausted: bool = False
    """Whether it ended because every task was attempted as often as the settings allow."""


class RolloutMetrics:
    """The instruments, with totals of their own."""

    def __init__(self, levels: Iterable[str]) -> None:
        """``levels``: names of the levels of tasks."""
        self._levels = tuple(levels)
        meter = get_meter(METER)
        self._counters = {
            name: meter.create_counter(f"headrace.rollouts.{name}", unit, about)
            for name, unit, about in (
                ("groups", "{group}", "Groups begun, by level."),
                ("attempts", "{attempt}", "Attempts, by how they ended."),
                ("restored", "{attempt}", "Members of groups of an ended sampler, by what was done."),
                ("waited", "s", "Time in which no group might begin."),
                ("fates", "{group}", "Groups, by what grouping made of them, and by level."),
                ("passes", "{attempt}", "Attempts of complete groups, by level and whether they passed."),
            )
        }
        self._totals: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in self._counters}
        self._waited_s = 0.0

    def level_name(self, level: int | None) -> str:
        """Return the name of a level."""
        return UNLEVELLED if level is None else self._levels[level]

    def began(self, level: int | None) -> None:
        """Count a group."""
        self._count("groups", 1, level=self.level_name(level))

    def ended(self, end: AttemptEnd) -> None:
        """Count an attempt."""
        self._count("attempts", 1, end=end)

    def restored(self, how: Restored, number: int = 1) -> None:
        """Count members of a predecessor's groups."""
        self._count("restored", number, how=how)

    def decided(self, fate: str, level: int | None) -> None:
        """Count a group's fate."""
        self._count("fates", 1, fate=fate, level=self.level_name(level))

    def scored(self, level: int | None, passed: int, failed: int) -> None:
        """Count the attempts of a complete group."""
        self._count("passes", passed, level=self.level_name(level), passed="yes")
        self._count("passes", failed, level=self.level_name(level), passed="no")

    def waited(self, seconds: float) -> None:
        """Add the duration of a wait."""
        self._waited_s += seconds
        self._counters["waited"].add(seconds)

    def report(self, *, seconds: float, levels: Iterable[int], is_exhausted: bool) -> SamplingReport:
        """Return the totals; ``levels``: those at which the curriculum was."""
        by_level, passes = self._totals["groups"], self._totals["passes"]
        fates: Counter[str] = Counter()
        for (fate, _), number in self._totals["fates"].items():
            fates[fate] += number
        tried = {level: passes[level, "yes"] + passes[level, "no"] for level, _ in passes}
        return SamplingReport(
            groups=by_level.total(),
            groups_by_level={level: number for (level,), number in sorted(by_level.items())},
            attempts={end: number for (end,), number in self._totals["attempts"].items()},
            restored={how: number for (how,), number in self._totals["restored"].items()},
            levels=tuple(map(self.level_name, levels)),
            pass_rates={level: passes[level, "yes"] / number for level, number in sorted(tried.items()) if number},
            fates=dict(fates),
            seconds=round(seconds, 2),
            waited_s=round(self._waited_s, 2),
            is_exhausted=is_exhausted,
        )

    def _count(self, name: str, number: int, **labels: str) -> None:
        if number:
            self._counters[name].add(number, labels)
            self._totals[name][tuple(labels.values())] += number


def observe_sampler(read: Callable[[], Mapping[str, float]]) -> None:
    """Export the gauges; ``read`` returns their values by name of :data:`GAUGES`."""
    meter = get_meter(METER)

    def observed(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(read()[name])]

    for name, (unit, about) in GAUGES.items():
        meter.create_observable_gauge(name, [observed(name)], unit, about)
