"""Watch as an operator: observations and steps in, readings and alerts out, by :class:`Watch`.

All observations are in one partition, because a monitor needs all trajectories of a policy version: a quarter of them
would make it see a hack several steps later.
"""

from collections import Counter

from headrace.schemas.envelope import TYPE
from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import AdmissionOrder, Alert
from headrace.schemas.records.step import Step
from headrace.schemas.records.watch import LevelAccepted, Observation, Readings
from headrace.schemas.topics import ALERTS, MONITORS, STEPS
from headrace.schemas.wire import Message, record_message
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside, read_state
from headrace.streams.typed_reader import TypedReader
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.key_state import KeyState, StoredRow, digest
from headrace.streams.watch.places import decoded
from headrace.streams.watch.settings import anneals_of
from headrace.streams.watch.watch import KEYS_DROPPED, NOT_OPEN, Watch, WatchChanges

SOURCE = "/streams/watch"
"""``ce_source`` of readings and alerts."""

_OBSERVATIONS, _STEPS, _LEVELS = TypedReader(Observation), TypedReader(Step), TypedReader(LevelAccepted)


def _read(record: LogRecord) -> Observation | Step | LevelAccepted:
    if record.topic == STEPS.name:
        return _STEPS.read(record).payload
    if dict(record.headers).get(TYPE) == LevelAccepted.TYPE.encode():
        return _LEVELS.read(record).payload
    return _OBSERVATIONS.read(record).payload


class WatchOperator(Operator):
    """One partition of ``observations`` and of ``steps``. Levels that people accept come with the observations."""

    def __init__(self, fold: Watch) -> None:
        """``fold``: the restored state."""
        self._fold = fold
        self._changes = WatchChanges()
        self._reached: Counter[str] = Counter()

    @property
    def limits_reached(self) -> Counter[str]:
        """Keys that were dropped because there were too many, and levels that were accepted of alerts that were not
        open."""
        return self._reached

    def process(self, record: LogRecord) -> None:
        """Fold an observation, a step, or a level that was accepted."""
        self._fold.add(_read(record), record.timestamp, self._changes)

    def flush(self) -> Effects:
        """Returns readings, alerts and state."""
        changes, self._changes = self._changes, WatchChanges()
        self._reached.update(
            {name: count for name, count in changes.counts.items() if name in (KEYS_DROPPED, NOT_OPEN)}
        )
        outgoing = [Outgoing(MONITORS, readings_message(each, at), at) for each, at in changes.readings]
        outgoing += [Outgoing(ALERTS, episode_message(each, at), at) for each, at in changes.alerts]
        return Effects(outgoing, changes.stored, changes.counts)


def restore_watch(rules: Rules, start: Start) -> tuple[WatchOperator, list[SetAside]]:
    """Returns the operator, and the entries of its state that cannot be read: also rows whose key is missing."""
    entries, aside = read_state(start.stored, decoded)
    known = {digest(*entry.key) for entry in entries.values() if isinstance(entry, KeyState)}
    for name, entry in list(entries.items()):
        if isinstance(entry, StoredRow) and entry.key not in known:
            aside.append(SetAside(start.stored[name], "an observation of a key that is missing or cannot be read"))
            del entries[name]
    watched = WatchRules(anneals_of(rules.watch, rules.rewards), frozenset(rules.watch.pauses), rules.watch.baselines)
    return WatchOperator(Watch(watched, entries.values())), aside


def readings_message(readings: Readings, time_ms: int) -> Message:
    """Returns ``readings`` as a record of ``monitors``. ``time_ms``: stream time, Unix milliseconds."""
    parts = (readings.lane, readings.run, readings.agent, readings.task_source, readings.spec, readings.window)
    return record_message(
        readings,
        id=derived_id(Readings.TYPE, *parts, readings.since_ms),
        key=readings.run,
        source=SOURCE,
        time_ms=time_ms,
        subject=readings.run or readings.lane,
    )


def episode_message(alert: Alert, time_ms: int, *, source: str = SOURCE) -> Message:
    """Returns an alert of an episode as a record of ``alerts``. ``time_ms``: stream time, Unix milliseconds.

    Raises ``ValueError`` if it belongs to no episode.
    """
    if alert.episode is None:
        raise ValueError(f"the alert {alert.kind} belongs to no episode")
    episode = alert.episode
    parts = (episode.id, episode.state, episode.by, alert.details.get("window", 0))
    # Somebody may acknowledge an alert first, and resume admission later.
    resumes = ("resume",) if episode.admission is AdmissionOrder.RESUME else ()
    return record_message(
        alert,
        id=derived_id(Alert.TYPE, *parts, *resumes),
        key=alert.run,
        source=source,
        time_ms=time_ms,
        subject=alert.run or episode.monitor,
    )
