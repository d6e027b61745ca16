"""Judges a complete window: measures it, moves the charts, opens and resolves episodes. Pure.

state of a key + rows of a window  →  state, readings, alerts
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, isfinite
from typing import NamedTuple

from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.records.alert import AdmissionOrder, Alert
from headrace.schemas.records.watch import Lane, Reading, Readings
from headrace.streams.rewards.schedule import Schedule
from headrace.streams.watch import tripwire
from headrace.streams.watch.adwin import cut, level, with_value
from headrace.streams.watch.baselines import BASELINE_WINDOWS, has_samples
from headrace.streams.watch.chart import THRESHOLD, Chart, Judged, is_off, judge, learnt, spared
from headrace.streams.watch.distances import deviation, mean
from headrace.streams.watch.episodes import EpisodeChange, Evidence, turned
from headrace.streams.watch.key_state import HISTORY, MAX_CHARTED_COMPONENTS, Began, KeyState
from headrace.streams.watch.measures import LABELS, SHARED, beside, is_penalty, logs_by_difficulty, shares_now
from headrace.streams.watch.monitors import (
    AGAINST,
    ANNEAL,
    ANNEAL_RULE,
    AT_EQUAL_DIFFICULTY,
    COMPONENT,
    COMPONENT_RULE,
    JUDGES_SAMPLE,
    MONITORS,
    REWARD,
    SAMPLED,
    TRIPWIRE,
    Monitor,
    component_monitors,
    without_offsets_of,
)
from headrace.streams.watch.offsets import Offset, with_window
from headrace.streams.watch.shares import Shares, followed
from headrace.streams.watch.window import VALUE, WEIGHT, Measured, Row, View

ANY_RUN = "*"
"""In settings: every run that is not named."""
SAMPLE = 512
"""Most values of a baseline's sample."""
EXAMPLES = 5
"""Trajectories that an alert names."""
_LEVEL = 2.0
"""By how many of the smallest changes that matter a label may become more or less common while its usual share is
learnt."""
_FOLLOWS_REST = 0.1
"""Share by which the mean of what is paid besides a component approaches each new value."""
_FEW = 4
"""Fewest tripwires and weights that are judged."""


@dataclass(frozen=True, slots=True)
class WatchRules:
    """What the monitors are compared with."""

    anneals: Mapping[str, Mapping[str, Schedule]]
    """How weights should decline relative to the first, by spec and component."""
    pauses: frozenset[str] = frozenset()
    """Monitors whose open alert pauses admission."""
    baselines: Mapping[str, str] = field(default_factory=dict)
    """Run → the run whose baseline it begins with; ``*``: any other run."""

    def baseline_for(self, run: str) -> str | None:
        """Returns the run whose baseline ``run`` begins with; ``None``: it learns its own."""
        other = self.baselines.get(run, self.baselines.get(ANY_RUN)) if run else None
        return None if other == run else other


class Concluded(NamedTuple):
    """What follows from a window."""

    state: KeyState
    """The key's state after it."""
    readings: Readings
    """What its monitors say."""
    alerts: list[Alert]
    """Episodes that were opened, continue or are resolved."""


class _Verdict(NamedTuple):
    reading: Reading
    evidence: Evidence


def conclude(state: KeyState, rows: Sequence[Row], rules: WatchRules) -> Concluded:
    """Returns what follows from the window ``rows``, which are not empty, for the key of ``state``."""
    first = min((row.version for row in rows if row.version is not None), default=None)
    last = max((row.version for row in rows if row.version is not None), default=None)
    since_ms = min(row.time_ms for row in rows)
    until_ms = max(row.time_ms for row in rows)
    history = [*state.history, Began(state.window, first, since_ms)][-HISTORY:]
    turn = _Turn(replace(state, history=history), rows)
    verdicts = turn.verdicts(rules)
    readings = Readings(
        **state.key._asdict(),
        window=state.window,
        trajectories=len(rows),
        first_version=first,
        last_version=last,
        since_ms=since_ms,
        until_ms=until_ms,
        readings={name: verdict.reading for name, verdict in verdicts.items()},
    )
    episodes = dict(state.episodes)
    alerts = []
    for name, verdict in verdicts.items():
        change = turned(
            EpisodeChange(
                state.key,
                name,
                state.window,
                until_ms,
                history,
                episodes.get(name),
                AdmissionOrder.PAUSE if name in rules.pauses else AdmissionOrder.NONE,
            ),
            verdict.reading,
            verdict.evidence,
        )
        if change.opened is None:
            episodes.pop(name, None)
        else:
            episodes[name] = change.opened
        alerts += change.alerts
    after = replace(turn.state, window=state.window + 1, touched_ms=max(until_ms, state.touched_ms), episodes=episodes)
    return Concluded(after, readings, alerts)


def anew(state: KeyState, monitor: str) -> KeyState:
    """Returns ``state`` without what ``monitor`` has learnt, and without its open episode: what is usual is learnt anew
    from the next window on. Evidence of tripwires begins anew, and a weight is compared with its schedule as before.
    With ``reward``, so are components that have moved with it, of which no alert of their own tells."""
    forgotten = {monitor}
    if monitor == REWARD:
        forgotten |= {
            name
            for name, chart in state.charts.items()
            if name.startswith(COMPONENT) and name not in state.episodes and is_off(chart, COMPONENT_RULE)
        }
    if monitor == TRIPWIRE:
        state = replace(state, tripwire=0.0)
    if monitor == JUDGES_SAMPLE:
        state = replace(state, samples={}, sampled_from=state.window)
    return replace(
        state,
        charts={name: chart for name, chart in state.charts.items() if name not in forgotten},
        adaptive={name: values for name, values in state.adaptive.items() if name != monitor},
        shares={name: usual for name, usual in state.shares.items() if name != monitor},
        rests=_without(state.rests, forgotten),
        pinned_rests=_without(state.pinned_rests, forgotten),
        episodes={name: opened for name, opened in state.episodes.items() if name != monitor},
    )


def _without(rests: Mapping[str, float], forgotten: Container[str]) -> dict[str, float]:
    return {name: rest for name, rest in rests.items() if COMPONENT + name not in forgotten}


class _Turn:
    """One window on its way through the monitors of its lane; collects the state after it."""

    def __init__(self, state: KeyState, rows: Sequence[Row]) -> None:
        self._rows = rows
        anew = without_offsets_of(state.key.lane, state.offsets)
        self._charts = {name: chart for name, chart in state.charts.items() if name not in anew}
        adaptive = {name: values for name, values in state.adaptive.items() if name not in anew}
        self.state = replace(state, charts=self._charts, adaptive=adaptive)
        self._rests, self._pinned_rests = dict(state.rests), dict(state.pinned_rests)
        self._view = View(rows, self._charts, state.shares, state.samples, state.offsets, self._rests)

    def verdicts(self, rules: WatchRules) -> dict[str, _Verdict]:
        lane = self.state.key.lane
        found: dict[str, _Verdict] = {}
        unpaid = self._unpaid()
        for monitor in chain(MONITORS[lane], self._components()):
            pays = monitor.component not in unpaid
            verdict = self._adaptive(monitor) if monitor.adapts else self._charted(monitor, counts=pays)
            if verdict is not None:
                found[monitor.name] = verdict
        if (verdict := self._tripwires()) is not None:
            found[TRIPWIRE] = verdict
        if lane is Lane.REWARD and (verdict := self._weights(rules.anneals)) is not None:
            found[ANNEAL] = verdict
        shares, offsets = self._shares(found), self._offsets()
        self.state = replace(
            self.state,
            charts=self._charts,
            shares=shares,
            offsets=offsets,
            rests=self._rests,
            pinned_rests=self._pinned_rests,
            samples=self._samples(lane),
        )
        return found

    def _unpaid(self) -> frozenset[str]:
        """The components that are no part of the reward: every weight in the window is 0, as of a shaping term whose
        schedule has ended, or of a figure that the reward only records."""
        names = {name for row in self._rows for name in row.values if name.startswith(WEIGHT)}
        return frozenset(name.removeprefix(WEIGHT) for name in names if not any(self._view.column(name)))

    def _charted(self, monitor: Monitor, *, counts: bool = True) -> _Verdict | None:
        """The verdict of a chart. ``counts``: whether what it measures is still paid for; otherwise there is no
        evidence, and an open episode is resolved."""
        measured = monitor.measure(self._view)
        if measured is None or not isfinite(measured.value):
            return None
        if monitor.rule is None:
            return _Verdict(Reading(value=measured.value, trajectories=measured.trajectories), _no_evidence)
        before = self._charts.get(monitor.name, Chart())
        after, judged = judge(before, monitor.rule, measured.value, spread=measured.spread, at=self.state.window)
        if monitor.name == REWARD and judged.expected is not None:
            self._view.reward_rise = (measured.value - before.pinned) / max(before.spread, 1e-9)
        is_usual = not (after.up or after.down)
        if monitor.spared is not None and not is_usual and monitor.spared(self._view):
            after = spared(before, after)
            if monitor.component and monitor.name not in self.state.episodes:  # as if it had its usual value
                usual, _ = judge(before, monitor.rule, before.mean, spread=measured.spread, at=self.state.window)
                after = replace(after, up=min(after.up, usual.up), down=min(after.down, usual.down))
            judged = replace(judged, strength=min(judged.strength, _strength(after, judged)))
        if monitor.name == COMPONENT + monitor.component and is_usual:
            self._follow_rest(monitor.component, 0 if learnt(before, monitor.rule) else after.count)
        if not counts:
            after, judged = replace(after, up=0.0, down=0.0), replace(judged, strength=0.0)
        self._charts[monitor.name] = after
        reading = _reading(measured, judged)
        shown = measured._replace(falls=after.down > after.up)
        label = measured.label if monitor.name in SHARED else ""
        return _Verdict(reading, Evidence(after.since, lambda: self._examples(monitor, shown), label))

    def _follow_rest(self, component: str, learning: int) -> None:
        """Move the mean of what is paid besides ``component``, of which no change is suspected; ``learning``: number of
        the window in its baseline, otherwise 0. A mean that one huge reward has made uncertain is left out: it would
        explain falls for hundreds of windows."""
        now, reward = beside(self._view, component), self._charts.get(REWARD)
        if now is None:
            return
        before = self._rests.get(component, now.rest)
        if reward is None or not 0 < reward.spread < now.error:
            self._rests[component] = before + _FOLLOWS_REST * (now.rest - before)
        if learning:
            pinned = self._pinned_rests.get(component, now.rest)
            self._pinned_rests[component] = pinned + (now.rest - pinned) / learning

    def _adaptive(self, monitor: Monitor) -> _Verdict | None:
        measured = monitor.measure(self._view)
        if measured is None or monitor.rule is None or not isfinite(measured.value):
            return None
        window = with_value(self.state.adaptive.get(monitor.name, []), measured.value)
        found = cut(window)
        matters = abs(found.effect) >= monitor.rule.matters_from(measured.spread)
        strength = found.strength if matters else min(found.strength, 0.99)
        sd = max(deviation(window), 1e-9)
        expected = level(window[:-1]) if len(window) > 1 else None
        reading = Reading(
            value=measured.value,
            trajectories=measured.trajectories,
            expected=expected,
            sd=sd if expected is not None else None,
            change=(measured.value - window[-2]) / sd if len(window) > 1 else None,
            strength=strength,
        )
        # What is too small to matter is kept: on a slow ramp each cut would otherwise make the next baseline.
        kept = window[-found.kept :] if found.strength > 1 and matters else window
        self.state = replace(self.state, adaptive={**self.state.adaptive, monitor.name: kept})
        since = self.state.window - found.kept + 1
        shown = measured._replace(falls=found.effect < 0)
        return _Verdict(reading, Evidence(since, lambda: self._examples(monitor, shown)))

    def _components(self) -> list[Monitor]:
        """The monitors of the components in the window, as many as may have a chart."""
        if self.state.key.lane is not Lane.REWARD:
            return []
        seen = {name.removeprefix(VALUE) for row in self._rows for name in row.values if name.startswith(VALUE)}
        names = sorted(name for name in seen if len(COMPONENT + name) <= MAX_NAME)
        known = {name.partition(":")[2] for name in self._charts if name.startswith((COMPONENT, AGAINST))}
        new = [name for name in names if name not in known]
        allowed = {*known, *new[: max(0, MAX_CHARTED_COMPONENTS - len(known))]}
        return [
            monitor
            for component in names
            if component in allowed
            for monitor in component_monitors(component, is_penalty=is_penalty(self._view, component))
        ]

    def _tripwires(self) -> _Verdict | None:
        if self.state.key.lane not in (Lane.ATTEMPT, Lane.REWARD):  # others may not know the task source to pause
            return None
        tripped = [row.values["tripped"] for row in self._rows if "tripped" in row.values]
        if not tripped:
            return None
        successes = sum(each > 0 for each in tripped)
        log_e = tripwire.evidence(self.state.tripwire, successes, len(tripped) - successes)
        self.state = replace(self.state, tripwire=log_e)
        reading = Reading(value=successes / len(tripped), trajectories=len(tripped), strength=tripwire.strength(log_e))
        guilty = sorted(row.id for row in self._rows if row.values.get("tripped"))
        return _Verdict(reading, Evidence(self.state.window, lambda: _first(guilty)))

    def _weights(self, anneals: Mapping[str, Mapping[str, Schedule]]) -> _Verdict | None:
        """How far the weights of shaping terms are above their schedules, relative to the first weights."""
        excess: list[float] = []
        first = dict(self.state.first_weights)
        for component, schedule in anneals.get(self.state.key.spec, {}).items():
            name = WEIGHT + component
            weighed = [
                (row.version, row.values[name]) for row in self._rows if row.version is not None and name in row.values
            ]
            if len(weighed) < _FEW:
                continue
            if component not in first:
                begun = [weight / schedule.at(version) for version, weight in weighed if schedule.at(version) > 0]
                if not begun:
                    continue
                first[component] = max(begun)
            if (start := first[component]) > 0:
                excess.append(mean([weight / start - schedule.at(version) for version, weight in weighed]))
        self.state = replace(self.state, first_weights=first)
        if not excess:
            return None
        before = self._charts.get(ANNEAL, Chart())
        measured = Measured(max(excess), len(self._rows))
        self._charts[ANNEAL], judged = judge(before, ANNEAL_RULE, measured.value, at=self.state.window)
        newest = sorted(self._rows, key=lambda row: (-(row.version or 0), row.id))
        evidence = Evidence(self._charts[ANNEAL].since, lambda: _first([row.id for row in newest]))
        return _Verdict(_reading(measured, judged), evidence)

    def _shares(self, found: Mapping[str, _Verdict]) -> dict[str, Shares]:
        """The usual shares of labels after the window; they stay where a change is suspected. While they are not
        level, how far labels rise above them is learnt again, too."""
        after = dict(self.state.shares)
        for monitor in MONITORS[self.state.key.lane]:
            if monitor.name in SHARED and self._view.acted:
                suspected = monitor.name in found and found[monitor.name].reading.strength > 0.25
                now, usual = shares_now(self._view, monitor.name), after.get(monitor.name, Shares())
                if not now and monitor.name not in LABELS:
                    continue
                most = _LEVEL * monitor.rule.smallest if monitor.rule else inf
                after[monitor.name] = followed(usual, now, frozen=suspected, level=most)
                if after[monitor.name].windows < usual.windows:
                    self._charts.pop(monitor.name, None)
        return after

    def _offsets(self) -> dict[str, dict[str, Offset]]:
        """The offsets of difficulties after the window. They are learnt against its value, or, if it has none because
        all of its difficulties are new, against that of the last window that had one."""
        after = dict(self.state.offsets)
        for name in AT_EQUAL_DIFFICULTY.get(self.state.key.lane, ()):
            adaptive, chart = self.state.adaptive.get(name), self._charts.get(name, Chart())
            at = adaptive[-1] if adaptive else chart.last
            if at is None and chart.count:  # a baseline of another run, none of whose difficulties are here
                at = chart.mean
            if at is not None:
                after[name] = with_window(after.get(name, {}), logs_by_difficulty(self._view, name), at)
        return after

    def _samples(self, lane: Lane) -> dict[str, list[float]]:
        """The baseline's samples of single trajectories: of the first windows, thinned to quantiles. They do not depend
        on the order within a window, which is another one in a replay."""
        if has_samples(self.state):
            return self.state.samples
        per_window = max(1, SAMPLE // BASELINE_WINDOWS)
        after = dict(self.state.samples)
        for name in SAMPLED.get(lane, ()):
            values = sorted(self._view.column(name))
            stride = max(1, -(-len(values) // per_window))
            after[name] = [*after.get(name, []), *values[stride // 2 :: stride]][:SAMPLE]
        return after

    def _examples(self, monitor: Monitor, measured: Measured) -> tuple[str, ...]:
        rows = self._view.evaluated if monitor.of_evaluations else self._view.acted
        guilty = [(-weight, row.id) for row in rows if (weight := monitor.guilt(row, measured)) is not None]
        return _first([id for _, id in sorted(guilty)])


def _first(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


_no_evidence = Evidence(0, tuple)


def _strength(chart: Chart, judged: Judged) -> float:
    return max(chart.up, chart.down) / (THRESHOLD * judged.sd) if judged.sd else 0.0


def _reading(measured: Measured, judged: Judged) -> Reading:
    effect = None
    if judged.sd and judged.pinned is not None:
        effect = (measured.value - judged.pinned) / judged.sd
    return Reading(
        value=measured.value,
        trajectories=measured.trajectories,
        pinned=judged.pinned,
        expected=judged.expected,
        sd=judged.sd,
        effect=effect,
        change=judged.change,
        strength=judged.strength,
    )
