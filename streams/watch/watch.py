"""The fold of ``watch``: observations and steps in, readings and alerts out. No clock, no I/O.

    observation ──▶ its keys ──▶ the open window of each ──complete──▶ conclude ──▶ Readings, Alerts

The state follows from the order of the observations of each key, however they are divided into batches; those of other
keys do not matter. Rejections, steps and feedback name only their trajectory: they count at its agent and task source,
and wait until it is observed (``places.py``). An observation that comes twice counts once. Every size is bounded: keys,
rows, charts, episodes, places.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.schemas.records.alert import Alert
from headrace.schemas.records.step import Step
from headrace.schemas.records.watch import Lane, LevelAccepted, Observation, Readings
from headrace.streams.watch.baselines import begun
from headrace.streams.watch.episodes import abandoned, accepted
from headrace.streams.watch.judgement import WatchRules, anew, conclude
from headrace.streams.watch.key_state import (
    REMEMBERED,
    KeyState,
    StoredRow,
    digest,
    key_entry,
    row_entry,
    row_name,
    state_name,
)
from headrace.streams.watch.places import About, Place, PlaceEntry, Places, StoredPlace, StoredWaiting
from headrace.streams.watch.window import Key, Row, ends_before, keys_of, row_of

MAX_KEYS = 256
"""Most keys that are watched at a time. A new one replaces the one that was quiet for longest, whose baseline is lost
and whose open episodes end."""

KEYS_DROPPED = "keys_dropped"
"""Counted: keys that were dropped because there were too many."""
ACCEPTED = "accepted"
"""Counted: alerts that ended because their level was accepted."""
NOT_OPEN = "accepted_not_open"
"""Counted: levels that were accepted of alerts that are not open."""
REPEATED = "repeated"
"""Counted: observations that came again."""
OBSERVED = "observed"
"""Counted: observations in windows."""
WINDOWS = "windows"
"""Counted: complete windows."""


@dataclass(slots=True)
class WatchChanges:
    """What some observations caused."""

    readings: list[tuple[Readings, int]] = field(default_factory=list)
    """Readings, with the stream time of the observation that completed the window."""
    alerts: list[tuple[Alert, int]] = field(default_factory=list)
    """Alerts, with that time."""
    stored: dict[bytes, bytes | None] = field(default_factory=dict)
    """Changes of the stored state."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts by name."""


def watch(known: Iterable[Observation | Step | LevelAccepted], rules: WatchRules) -> tuple[list[Readings], list[Alert]]:
    """Returns what the monitors say about ``known`` observations, steps and accepted levels, in order, from an empty
    state."""
    fold, changes = Watch(rules), WatchChanges()
    for time_ms, each in enumerate(known):
        fold.add(each, time_ms, changes)
    return [readings for readings, _ in changes.readings], [alert for alert, _ in changes.alerts]


class Watch:
    """The state of all keys."""

    def __init__(self, rules: WatchRules, entries: Iterable[KeyState | StoredRow | PlaceEntry] = ()) -> None:
        """``entries``: the stored state, rows in the order in which they were stored. Rows of a key that is not among
        them are left out.
        """
        self._rules = rules
        self._states: dict[Key, KeyState] = {}
        self._rows: dict[Key, dict[str, Row]] = {}
        stored = list(entries)
        by_digest: dict[str, Key] = {}
        for entry in stored:
            if isinstance(entry, KeyState):
                key = Key(*entry.key)
                self._states[key], self._rows[key] = entry, {}
                by_digest[digest(*key)] = key
        for entry in stored:
            if isinstance(entry, StoredRow) and entry.key in by_digest:
                self._rows[by_digest[entry.key]][entry.identity] = entry.row
        self._remembered = {key: set(state.remembered) for key, state in self._states.items()}
        self._places = Places(entry for entry in stored if isinstance(entry, StoredPlace | StoredWaiting))

    @property
    def keys(self) -> list[Key]:
        """The keys, sorted."""
        return sorted(self._states)

    def entries(self) -> list[KeyState | StoredRow | PlaceEntry]:
        """Returns the whole state as it is stored, by key, then the places of trajectories."""
        found: list[KeyState | StoredRow | PlaceEntry] = []
        for key in self.keys:
            found.append(self._states[key])
            found += [StoredRow(digest(*key), identity, row) for identity, row in self._rows[key].items()]
        return [*found, *self._places.entries()]

    def add(self, record: Observation | Step | LevelAccepted, time_ms: int, changes: WatchChanges) -> None:
        """Add an observation, the trajectories of a step, or an accepted level, whose record has the timestamp
        ``time_ms``."""
        if record.TYPE == LevelAccepted.TYPE:
            self._accept(record, time_ms, changes)  # type: ignore[arg-type]  # a struct with its fields
            return
        if record.TYPE == Step.TYPE:
            self._add_step(record, time_ms, changes)  # type: ignore[arg-type]  # a struct with its fields
            return
        observation: Observation = record  # type: ignore[assignment]
        row = row_of(observation, time_ms)
        identity = digest(observation.trajectory_id, observation.part)
        if observation.of in (Lane.FATE, Lane.FEEDBACK):
            for key in keys_of(observation):
                self._add_about(About(digest(observation.trajectory_id, ""), key, identity, row), changes)
            return
        for key in keys_of(observation):
            self._add(key, identity, row, changes)
        if observation.of is Lane.ATTEMPT:
            place = Place(observation.run, observation.agent, observation.task_source, observation.version)
            self._add_all(self._places.found(identity, place, changes.stored), changes)

    def _add_step(self, step: Step, time_ms: int, changes: WatchChanges) -> None:
        key = Key(Lane.FATE, step.run)
        for group in step.groups:
            for id in group.trajectory_ids:
                row, trajectory = Row(id, step.version, time_ms, {"dropped": 0.0}), digest(id, "")
                self._add_about(About(trajectory, key, trajectory, row), changes)

    def _accept(self, level: LevelAccepted, time_ms: int, changes: WatchChanges) -> None:
        key = Key(Lane(level.lane), level.run, level.agent, level.task_source, level.spec)
        state = self._states.get(key)
        opened = None if state is None else state.episodes.get(level.monitor)
        if state is None or opened is None or opened.id != level.episode:
            changes.counts[NOT_OPEN] += 1
            return
        self._states[key] = anew(state, level.monitor)
        changes.stored.update([key_entry(self._states[key])])
        changes.alerts.append((accepted(key, level.monitor, opened, state.window, level.by), time_ms))
        changes.counts[ACCEPTED] += 1

    def _add_about(self, about: About, changes: WatchChanges) -> None:
        """Add a row about a trajectory that may not be observed yet."""
        if self._places.waits(about):
            changes.counts[REPEATED] += 1
            return
        self._add_all(self._places.placed(about, changes.stored), changes)

    def _add_all(self, rows: Iterable[About], changes: WatchChanges) -> None:
        for each in rows:
            self._add(each.key, each.identity, each.row, changes)

    def _add(self, key: Key, identity: str, row: Row, changes: WatchChanges) -> None:
        if key not in self._states:
            self._begin(key, row.time_ms, changes)
        rows = self._rows[key]
        if identity in rows or identity in self._remembered[key]:
            changes.counts[REPEATED] += 1
            return
        if ends_before(key, list(rows.values()), row):
            self._end(key, row.time_ms, changes)
            rows = self._rows[key]
        rows[identity] = row
        changes.counts[OBSERVED] += 1
        changes.stored.update([row_entry(StoredRow(digest(*key), identity, row))])

    def _begin(self, key: Key, time_ms: int, changes: WatchChanges) -> None:
        pinned = self._rules.baseline_for(key.run)
        other = None if pinned is None else self._states.get(key._replace(run=pinned))
        if len(self._states) >= MAX_KEYS:
            oldest = min(self._states, key=lambda each: (self._touched_ms(each), each))
            self._forget_rows(oldest, changes)
            dropped = self._states[oldest]
            changes.alerts += [
                (abandoned(oldest, monitor, opened, dropped.window), time_ms)
                for monitor, opened in sorted(dropped.episodes.items())
            ]
            del self._states[oldest], self._rows[oldest], self._remembered[oldest]
            changes.stored[state_name(oldest)] = None
            changes.counts[KEYS_DROPPED] += 1
        self._states[key], self._rows[key], self._remembered[key] = begun(key, time_ms, other), {}, set()
        changes.stored.update([key_entry(self._states[key])])

    def _touched_ms(self, key: Key) -> int:
        """Time of the last complete window, or of the last observation since."""
        newest = next(reversed(self._rows[key].values()), None)
        return max(self._states[key].touched_ms, newest.time_ms if newest else 0)

    def _end(self, key: Key, time_ms: int, changes: WatchChanges) -> None:
        rows = self._rows[key]
        # First: if they cannot be judged, the record that ended the window becomes a dead letter, and no later one.
        self._forget_rows(key, changes)
        self._rows[key] = {}
        concluded = conclude(self._states[key], list(rows.values()), self._rules)
        remembered = [*concluded.state.remembered, *rows][-REMEMBERED:]
        self._states[key] = replace(concluded.state, remembered=remembered)
        self._remembered[key] = set(remembered)
        changes.stored.update([key_entry(self._states[key])])
        changes.readings.append((concluded.readings, time_ms))
        changes.alerts += [(alert, time_ms) for alert in concluded.alerts]
        changes.counts[WINDOWS] += 1

    def _forget_rows(self, key: Key, changes: WatchChanges) -> None:
        name = digest(*key)
        for identity in self._rows[key]:
            changes.stored[row_name(name, identity)] = None
