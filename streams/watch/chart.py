"""A control chart: learns what a value is like, then accumulates evidence that it has moved.

    baseline          the first 25 values: mean m, standard deviation s
    slack  k          max(¾·s, ½·smallest effect that matters) + 3·s/√25
    up                max(0, up + (x − m) − k)            down the same with (m − x); a rule may limit what one x adds
    alarm             while up, or down, is above h = 8·s

The sums are Page's CUSUM (1954). The slack for the error of a short baseline, 3·s/√n, makes false alarms rare: with ½·s
and 2·s/√n, of 20,000 charts of pure noise 3 % alarm within 1,000 windows, with ¾ and 3 it is 0.2 %. s is at least ¼ of
the smallest effect, for values that never varied in the baseline. After the baseline m follows the value slowly (1 % a
window) unless there is evidence against it: a policy that learns honestly changes its behaviour too, but over hundreds
of steps.

A chart that alarms continues; its sums are capped at 2·h, so that a value which has come back resolves it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite, sqrt

THRESHOLD = 8.0
"""h, in standard deviations."""
FOLLOWS = 0.01
"""Share by which m approaches each new value."""
CAP = 2.0
"""Largest sum, in units of h."""
RECENT = 0.2
"""Weight of a new value in the mean of recent ones, whose standard deviation is then a third of s."""


class Direction(StrEnum):
    """Which changes alarm."""

    UP = "up"
    DOWN = "down"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class ChartRule:
    """What a chart looks for."""

    direction: Direction
    """Which changes alarm."""
    smallest: float
    """Smallest change that matters, in the value's unit, or in its spread (``in_spreads``)."""
    in_spreads: bool = False
    """Whether ``smallest`` is in standard deviations of single trajectories, as the window reports them."""
    least: float = 0.0
    """Changes below this do not matter however small the spread is, in the value's unit."""
    baseline: int = 25
    """Number of values of which the baseline is learnt; at least 2."""
    target: float | None = None
    """The mean, if it is known and need not be learnt; the chart then alarms from the first value on."""
    follows: float = FOLLOWS
    """Share by which the mean approaches each new value; 0 for a baseline that stays."""
    most_a_window: float = CAP
    """Largest evidence that one value adds, in units of h. Below ½ it takes three values to alarm: for what depends on
    the tasks of a window, which are few."""

    def __post_init__(self) -> None:
        if self.smallest <= 0 or self.baseline < 2 or not 0 <= self.follows < 1 or self.most_a_window <= 0:
            raise ValueError(
                f"{self}: smallest and most_a_window must be above 0, baseline at least 2, follows in [0, 1)"
            )

    def matters_from(self, spread: float) -> float:
        """Returns the smallest change that matters for values with the standard deviation ``spread``, in the value's
        unit."""
        return max(self.least, self.smallest * max(spread, 1e-9) if self.in_spreads else self.smallest)


@dataclass(frozen=True, slots=True)
class Chart:
    """State of a chart."""

    count: int = 0
    """Values so far."""
    pinned: float = 0.0
    """Mean of the baseline, as far as it is learnt."""
    squares: float = 0.0
    """Sum of the squared deviations of the baseline from its mean."""
    spread: float = 0.0
    """Mean over the baseline of the standard deviations of single trajectories, without windows in which all are alike;
    if there is no other, that of the first one since."""
    mean: float = 0.0
    """m."""
    up: float = 0.0
    """Evidence for a rise, in the value's unit."""
    down: float = 0.0
    """Evidence for a fall, in the value's unit."""
    last: float | None = None
    """The newest value."""
    since: int = 0
    """Number of the window in which the present evidence began to grow; without evidence the next one's."""
    recent: float | None = None
    """Exponentially weighted mean of the values; ``None`` in the state of an older release, until the next one."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a chart says about a value."""

    strength: float
    """Evidence in units of h: above 1 the chart alarms. 0 while the baseline is learnt."""
    pinned: float | None = None
    """Mean of the baseline; ``None`` while it is learnt."""
    expected: float | None = None
    """m, before it followed the value."""
    sd: float | None = None
    """s."""
    change: float | None = None
    """(value − previous) / s."""


def learnt(chart: Chart, rule: ChartRule) -> bool:
    """Whether the baseline of ``chart`` is complete."""
    return rule.target is not None or chart.count >= rule.baseline


def sd_of(chart: Chart, rule: ChartRule) -> float:
    """Returns s of a chart whose baseline is complete."""
    least = rule.matters_from(chart.spread) / 4
    learnt_from = min(chart.count, rule.baseline)
    return least if learnt_from < 2 else max(least, sqrt(chart.squares / (learnt_from - 1)))


def slack_of(chart: Chart, rule: ChartRule) -> float:
    """Returns k of a chart whose baseline is complete."""
    sd = sd_of(chart, rule)
    error = 0.0 if rule.target is not None else 3 * sd / sqrt(rule.baseline)
    return max(0.75 * sd, 0.5 * rule.matters_from(chart.spread)) + error


def seen_from(chart: Chart, rule: ChartRule) -> float:
    """Returns a lasting change that a chart whose baseline is complete sees. One that is hardly above k is not:
    m has followed it before there is a quarter of the evidence for an alarm."""
    return slack_of(chart, rule) + THRESHOLD * sd_of(chart, rule) / 16


def is_off(chart: Chart, rule: ChartRule) -> bool:
    """Whether recent values are farther from m than k on average. That is four standard deviations of such a mean, so
    values that have not moved hardly ever are. A move that the chart sees is noticed after one to ten values.
    """
    return learnt(chart, rule) and chart.recent is not None and abs(chart.recent - chart.mean) > slack_of(chart, rule)


def _with_spread(before: float, spread: float, count: int) -> float:
    """Returns the mean spread of ``count`` windows. One in which all are alike says nothing about how far others are
    apart: of what seldom happens, such as a penalty, the mean would be too small."""
    if not before or not spread:
        return before or spread
    return before + (spread - before) / count


def _recent(chart: Chart, value: float) -> float:
    before = chart.recent
    if before is None:
        before = chart.mean if chart.count else value
    return before + RECENT * (value - before)


def judge(chart: Chart, rule: ChartRule, value: float, *, spread: float = 1.0, at: int = 0) -> tuple[Chart, Judged]:
    """Returns the chart after the next value, and what it says about it.

    ``spread``: standard deviation of single trajectories in the window, whose number is ``at``. Raises ``ValueError``
    for a value that is not finite.
    """
    if not (isfinite(value) and isfinite(spread)):
        raise ValueError(f"a chart cannot take {value} with the spread {spread}")
    if not learnt(chart, rule):
        count = chart.count + 1
        delta = value - chart.pinned
        pinned = chart.pinned + delta / count
        squares = chart.squares + delta * (value - pinned)
        wide = _with_spread(chart.spread, spread, count)
        after = Chart(count, pinned, squares, wide, pinned, last=value, since=at + 1, recent=_recent(chart, value))
        return after, Judged(0.0)
    if rule.target is not None and not chart.count:
        chart = replace(chart, pinned=rule.target, mean=rule.target, spread=1.0)
    if not chart.spread:
        chart = replace(chart, spread=spread)
    sd, slack = sd_of(chart, rule), slack_of(chart, rule)
    limit = THRESHOLD * sd
    most = rule.most_a_window * limit
    up = min(CAP * limit, max(0.0, chart.up + min(most, value - chart.mean - slack)))
    down = min(CAP * limit, max(0.0, chart.down + min(most, chart.mean - value - slack)))
    if rule.direction is Direction.UP:
        down = 0.0
    if rule.direction is Direction.DOWN:
        up = 0.0
    evidence = max(up, down)
    follows = rule.follows if evidence < limit / 4 else 0.0
    after = replace(
        chart,
        count=chart.count + 1,
        mean=chart.mean + follows * (value - chart.mean),
        up=up,
        down=down,
        last=value,
        since=chart.since if evidence > 0 else at + 1,
        recent=_recent(chart, value),
    )
    change = None if chart.last is None else (value - chart.last) / sd
    return after, Judged(evidence / limit, chart.pinned, chart.mean, sd, change)


def spared(before: Chart, after: Chart) -> Chart:
    """Returns ``after`` with no more evidence than ``before`` had, for a value that something harmless explains."""
    return replace(after, up=min(after.up, before.up), down=min(after.down, before.down))
