"""Measures of windows: shares, means, correlations, labels that have become more common. Pure, without a baseline of
their own: charts compare their values from window to window.
"""

from collections import Counter
from collections.abc import Sequence
from math import fsum, inf, log, log1p, sqrt
from typing import NamedTuple

from headrace.streams.watch.actions import CALL
from headrace.streams.watch.distances import (
    correlation,
    deviation,
    kolmogorov_smirnov,
    mean,
    total_variation,
    wasserstein,
)
from headrace.streams.watch.offsets import without_offsets
from headrace.streams.watch.shares import risen, shares_of
from headrace.streams.watch.window import VALUE, WEIGHT, Guilt, Measure, Measured, Row, View, averaged

FEW = 16
"""Fewest rows with a value that are measured."""
DIFFICULTY_MIX = "difficulty_mix"
"""Name of the reading that keeps how common each difficulty usually is."""
ACTION_MIX = "action_mix"
"""Name of the monitor that keeps the usual shares of all calls."""


def share(name: str, at_least: float = 0.5) -> Measure:
    """The share of trajectories whose value ``name`` is at least ``at_least``; in [0, 1]."""

    def measure(view: View) -> Measured | None:
        values = view.column(name)
        return averaged([float(value >= at_least) for value in values], FEW)

    return measure


def at_most(name: str, limit: float) -> Measure:
    """The share of trajectories whose value ``name`` is at most ``limit``; in [0, 1]."""

    def measure(view: View) -> Measured | None:
        return averaged([float(value <= limit) for value in view.column(name)], FEW)

    return measure


def average(name: str) -> Measure:
    """The mean of the value ``name``."""
    return lambda view: averaged(view.column(name), FEW)


def average_of_scale(name: str) -> Measure:
    """The mean of the value ``name``, for values whose scale is unknown, such as rewards. Their standard deviation is
    at least a tenth of the largest one, so that values which are all alike may differ by a little."""

    return lambda view: _of_scale(view.column(name))


def _of_scale(values: Sequence[float]) -> Measured | None:
    found = averaged(values, FEW)
    return found and found._replace(spread=max(found.spread, 0.1 * max(map(abs, values))))


def average_log(name: str) -> Measure:
    """The mean of log(1 + value ``name``), for counts that differ by factors."""
    return lambda view: averaged([log1p(max(0.0, value)) for value in view.column(name)], FEW)


def average_log_at_equal_difficulty(name: str) -> Measure:
    """The mean of log(1 + value ``name``), without the :mod:`offsets` of the tasks' difficulties. So a curriculum that
    goes on to harder tasks is no change, and an agent that takes longer over the same tasks is one.
    """

    def measure(view: View) -> Measured | None:
        return averaged(without_offsets(logs_by_difficulty(view, name), view.offsets.get(name, {})), FEW)

    return measure


def logs_by_difficulty(view: View, name: str) -> dict[str, list[float]]:
    """Returns log(1 + value ``name``) of the rows that have it, by difficulty, without evaluations."""
    found = dict[str, list[float]]()
    for row in view.acted:
        if name in row.values:
            found.setdefault(row.difficulty, []).append(log1p(max(0.0, row.values[name])))
    return found


def correlated(x: str, y: str) -> Measure:
    """The correlation of the values ``x`` and ``y``, in [−1, 1]; 0 if one of them does not vary."""

    def measure(view: View) -> Measured | None:
        at_x, at_y = view.pairs(x, y)
        if len(at_x) < FEW:
            return None
        found = correlation(at_x, at_y)
        return Measured(found[0] if found else 0.0, len(at_x))

    return measure


def slope(x: str, y: str) -> Measure:
    """The slope of ``y`` over ``x``, in units of y by units of x; 0 if one of them does not vary."""

    def measure(view: View) -> Measured | None:
        at_x, at_y = view.pairs(x, y)
        if len(at_x) < FEW:
            return None
        found = correlation(at_x, at_y)
        return Measured(found[1] if found else 0.0, len(at_x))

    return measure


def labels_of(row: Row) -> tuple[str, ...]:
    """The labels of an observation."""
    return row.labels


def source_of(row: Row) -> tuple[str, ...]:
    """The task source, as a label."""
    return (row.task_source,)


def tenant_of(row: Row) -> tuple[str, ...]:
    """The tenant, as a label."""
    return (row.tenant,)


def tools_of(row: Row) -> tuple[str, ...]:
    """The tools that were offered, as a label; none if they are unknown."""
    return (row.tools_offered,) if row.tools_offered else ()


def difficulty_of(row: Row) -> tuple[str, ...]:
    """The difficulty of the task, as a label."""
    return (row.difficulty,)


def risen_label(monitor: str) -> Measure:
    """How much the share of the label that has risen most is above its usual one; in [0, 1]. ``None`` in the first
    five windows, whose shares are not yet known."""

    def measure(view: View) -> Measured | None:
        usual = view.shares.get(monitor)
        if usual is None or usual.windows < 5 or len(view.rows) < FEW:
            return None
        if len(view.acted) < FEW:
            return None
        label, by = risen(usual, shares_now(view, monitor))
        return Measured(by, len(view.acted), label=label)

    return measure


def shares_now(view: View, monitor: str) -> dict[str, float]:
    """Returns the share of each label of ``monitor`` in the window, which has rows that are no evaluations. Those of
    ``action_mix`` are of all calls, and add up to 1, or are empty where calls are not counted."""
    if monitor not in view.now:
        view.now[monitor] = (
            mix_of(view.acted) if monitor == ACTION_MIX else shares_of([LABELS[monitor](row) for row in view.acted])
        )
    return view.now[monitor]


def mix_of(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the share of each tool, and of each action that is no call, among all calls of ``rows``."""
    counts: dict[str, float] = {}
    for row in rows:
        for name, count in row.values.items():
            if name.startswith(CALL):
                counts[name[len(CALL) :]] = counts.get(name[len(CALL) :], 0.0) + count
    total = fsum(counts.values())
    return {name: count / total for name, count in sorted(counts.items())} if total > 0 else {}


def action_mix(view: View) -> Measured | None:
    """How far the mix of calls is from the usual one, as their total variation, in [0, 1]. ``None`` in the first five
    windows, whose mix is not yet known."""
    usual = view.shares.get(ACTION_MIX)
    if usual is None or usual.windows < 5 or len(view.acted) < FEW or not (now := shares_now(view, ACTION_MIX)):
        return None
    return Measured(total_variation(usual.share, now), len(view.acted), label=risen(usual, now)[0])


def called_more(row: Row, measured: Measured) -> float | None:
    """Rows in the order of how often they call what has become more common."""
    return row.values.get(CALL + measured.label) or None


LABELS = {
    "action_trigram": labels_of,
    "drop_reason": labels_of,
    DIFFICULTY_MIX: difficulty_of,
    "rejection_reason": labels_of,
    "source_mix": source_of,
    "tenant_mix": tenant_of,
    "tool_mix": tools_of,
}
"""Monitors of labels → the labels that they look at."""
SHARED = frozenset({*LABELS, ACTION_MIX})
"""Monitors that keep usual shares."""


def is_penalty(view: View, component: str) -> bool:
    """Whether the weights of ``component`` are negative, taken together."""
    return _sign(view.column(WEIGHT + component)) < 0


def _sign(weights: Sequence[float]) -> float:
    return -1.0 if fsum(weights) < 0 else 1.0


def against_the_rest(component: str) -> Measure:
    """The correlation of a component, or of a penalty's negative, with the rest of the reward, in [−1, 1]. ``None`` if
    fewer than eight of its values differ from the commonest: an honest policy that solves everything must not look like
    one that games."""

    def measure(view: View) -> Measured | None:
        value, weight = VALUE + component, WEIGHT + component
        pairs = [
            (values[value], values["total"] - values[value] * values[weight])
            for values in (row.values for row in view.acted)
            if value in values and weight in values and "total" in values
        ]
        sign = _sign(view.column(weight))
        own, rest = [sign * each for each, _ in pairs], [each for _, each in pairs]
        if len(pairs) < FEW or len(pairs) - max(Counter(own).values()) < FEW // 2:
            return None
        found = correlation(own, rest)
        return Measured(found[0], len(pairs), centres=(mean(own), mean(rest), sign)) if found else None

    return measure


class Beside(NamedTuple):
    """What the reward of a window pays besides a component."""

    rest: float
    """Its mean."""
    error: float
    """Standard error of the mean; attempts at one prompt, which are alike, count together."""
    share: float
    """What one of the component adds to the mean reward: its weight, less for attempts that do not have it."""


def beside(view: View, component: str) -> Beside | None:
    """Returns what the reward pays besides ``component``. ``None`` for fewer than 16 attempts, or without a weight."""
    value, weight = VALUE + component, WEIGHT + component
    weights = view.column(weight)
    rows = [row for row in view.acted if "total" in row.values]
    if len(rows) < FEW or not weights:
        return None
    rest = [row.values["total"] - row.values.get(value, 0.0) * row.values.get(weight, 0.0) for row in rows]
    having = sum(value in row.values for row in rows) / len(rows)
    return Beside(mean(rest), _error(rest, [row.group or row.id for row in rows]), mean(weights) * having)


def _error(values: Sequence[float], groups: Sequence[str]) -> float:
    """Returns the standard error of the mean of ``values``, which are alike within ``groups``: a window has few of
    them. At least that of values without groups."""
    centre, found = mean(values), dict[str, list[float]]()
    for value, group in zip(values, groups, strict=True):
        found.setdefault(group, []).append(value - centre)
    alone = deviation(values) / sqrt(len(values))
    if len(found) < 2:
        return alone
    together = fsum(fsum(each) ** 2 for each in found.values()) * len(found) / (len(found) - 1)
    return max(alone, sqrt(together) / len(values))


def answered(view: View) -> Measured | None:
    """The share of attempts that answer, of those whose outcome is known; in [0, 1]. ``None`` for fewer than 16: where
    nobody knows which answers are right, more answers may be what an honest policy has learnt."""
    return averaged([float(row.values["answered"] >= 0.5) for row in _with_outcome(view)], FEW)


def wrong_answers(view: View) -> Measured | None:
    """The share of attempts that answer wrongly, of those whose outcome is known; in [0, 1]."""
    return averaged([_wrong(row) for row in _with_outcome(view)], FEW)


def wrongly_answered(row: Row, _: Measured) -> float | None:
    """Rows with an answer, the worst outcome first."""
    return (_wrong(row) or None) if row.values.keys() >= _OUTCOME else None


_OUTCOME = {"outcome", "answered"}


def _with_outcome(view: View) -> list[Row]:
    return [row for row in view.acted if row.values.keys() >= _OUTCOME]


def _wrong(row: Row) -> float:
    return min(1.0, max(0.0, 1.0 - row.values["outcome"])) if row.values["answered"] >= 0.5 else 0.0


def identical(view: View) -> Measured | None:
    """The share of the commonest total that is neither the least nor the largest of the window; in [0, 1].

    A reward of 0 and 1 has many equal totals, and an honest policy that solves everything has only equal ones; equal
    totals between the extremes show that different attempts are paid for the same trick.
    """
    totals = view.column("total")
    if len(totals) < FEW:
        return None
    extremes = {min(totals), max(totals), 0.0, *view.column("maximum")[:1]}
    counts: dict[float, int] = {}
    for total in totals:
        if total not in extremes:
            counts[total] = counts.get(total, 0) + 1
    return Measured(max(counts.values(), default=0) / len(totals), len(totals))


def at_maximum(view: View) -> Measured | None:
    """The share of totals that are the largest possible one; in [0, 1]. ``None`` where the spec does not say it."""
    both = [row.values for row in view.acted if row.values.keys() >= _BOUNDED]
    return averaged([float(values["total"] >= values["maximum"]) for values in both], FEW)


def group_variance(view: View) -> Measured | None:
    """The logarithm of the variance of totals within groups, relative to m·(1 − m) of each group's mean m, with totals
    as shares of the maximum: the variance of rewards that are 0 or 1 with the same mean.

    So rewards of 0 and 1 always have the same value, however many succeed, and a group in which all get the maximum, or
    nothing, says nothing. ``None`` for fewer than 16 totals in groups with a mean in between. At least log 0.001.
    """
    variance, explained, count, least = 0.0, 0.0, 0, ("", inf)
    for group, totals in sorted(_groups(view).items()):
        centre = mean(totals)
        bernoulli = centre * (1 - centre)
        if len(totals) < 2 or bernoulli <= 0:
            continue
        own = deviation(totals) ** 2
        variance, explained, count = variance + own, explained + bernoulli, count + len(totals)
        least = min(least, (group, own / bernoulli), key=lambda each: each[1])
    if count < FEW:
        return None
    return Measured(log(max(variance / explained, 1e-3)), count, label=least[0])


def of_group(row: Row, measured: Measured) -> float | None:
    """Rows of the group that the value is about."""
    return 1.0 if row.group == measured.label and "total" in row.values else None


_BOUNDED = {"total", "maximum"}


def _groups(view: View) -> dict[str, list[float]]:
    """Totals by group, as shares of the maximum."""
    found: dict[str, list[float]] = {}
    for row in view.acted:
        if row.group and row.values.keys() >= _BOUNDED and row.values["maximum"] > 0:
            found.setdefault(row.group, []).append(row.values["total"] / row.values["maximum"])
    return found


def upper_tail(view: View) -> Measured | None:
    """The share of totals above nine tenths of the baseline's; in [0, 1]. ``None`` without a baseline."""
    totals, before = view.column("total"), view.samples.get("total", ())
    if len(totals) < FEW or len(before) < FEW:
        return None
    cut = sorted(before)[(9 * len(before)) // 10]
    return averaged([float(total > cut) for total in totals], FEW)


def reward_ks(view: View) -> Measured | None:
    """Kolmogorov and Smirnov's D between the totals of the window and the baseline's; in [0, 1]."""
    totals, before = view.column("total"), view.samples.get("total", ())
    if len(totals) < FEW or len(before) < FEW:
        return None
    return Measured(kolmogorov_smirnov(totals, before), len(totals), centres=(mean(totals) - mean(before),))


def otherwise_paid(row: Row, measured: Measured) -> float | None:
    """Rows in the order of their totals: the smallest first if the mean total is below the baseline's, otherwise the
    largest."""
    return (low if measured.centres[0] < 0 else high)("total")(row, measured)


def reward_wasserstein(view: View) -> Measured | None:
    """Wasserstein distance between the totals of the window and the baseline's, in the latter's standard deviations."""
    totals, before = view.column("total"), view.samples.get("total", ())
    if len(totals) < FEW or len(before) < FEW:
        return None
    return Measured(wasserstein(totals, before) / max(deviation(before), 1e-6), len(totals))


def heldout_gap(view: View) -> Measured | None:
    """Mean total of training rollouts minus that of evaluations in the same window. ``None`` with fewer than 16."""
    held_out = heldout(view)
    trained = _of_scale(view.column("total"))
    if trained is None or held_out is None:
        return None
    trajectories = trained.trajectories + held_out.trajectories
    return Measured(trained.value - held_out.value, trajectories, max(trained.spread, 1e-6))


def heldout(view: View) -> Measured | None:
    """Mean total of the evaluations of the window. ``None`` with fewer than 16."""
    return _of_scale([row.values["total"] for row in view.evaluated if "total" in row.values])


def has(name: str, at_least: float = 0.5) -> Guilt:
    """Rows whose value ``name`` is at least ``at_least``; the larger the better an example."""
    return lambda row, _: value if (value := row.values.get(name, 0.0)) >= at_least else None


def lacks(name: str, limit: float = 0.5) -> Guilt:
    """Rows whose value ``name`` is at most ``limit``."""
    return lambda row, _: -value if (value := row.values.get(name, limit + 1)) <= limit else None


def opposed(component: str) -> Guilt:
    """Rows in which a component and the rest of the reward are on other sides of their means, the farthest first."""
    value, weight = VALUE + component, WEIGHT + component

    def guilt(row: Row, measured: Measured) -> float | None:
        if not {"total", value, weight} <= row.values.keys():
            return None
        usual_own, usual_rest, sign = measured.centres
        own, rest = sign * row.values[value], row.values["total"] - row.values[value] * row.values[weight]
        against = -(own - usual_own) * (rest - usual_rest)
        return against if against > 0 else None

    return guilt


def high(name: str) -> Guilt:
    """Rows in the order of their value ``name``, the largest first."""
    return lambda row, _: row.values.get(name)


def moved(name: str) -> Guilt:
    """Rows in the order of their value ``name``: the smallest first if what is measured has fallen, otherwise the
    largest."""
    return lambda row, measured: (low if measured.falls else high)(name)(row, measured)


def low(name: str) -> Guilt:
    """Rows in the order of their value ``name``, the smallest first."""
    return lambda row, _: -row.values[name] if name in row.values else None


def labelled(monitor: str) -> Guilt:
    """Rows with the label that has risen."""
    return lambda row, measured: 1.0 if measured.label in LABELS[monitor](row) else None
