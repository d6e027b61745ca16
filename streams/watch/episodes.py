"""Episodes: from the window in which a monitor alarms to the one in which it no longer does.

    strength 1.2  opened  ·  1.6 · 1.9  ongoing (after 8, 16, 32 … windows)  ·  0.4  resolved

Every change of state is an alert in ``alerts``, and so is every change of what it asks the trainer to do, because its
monitor was added to those that pause admission, or removed from them. The newest alert of an episode applies. An
acknowledgement is an alert of the same episode that a person sends; it changes nothing here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState, Severity
from headrace.schemas.records.watch import Reading
from headrace.streams.watch.key_state import Began, Opened
from headrace.streams.watch.monitors import TRIPWIRE, about, in_words, runbook_of
from headrace.streams.watch.window import Key

RESOLVED_BELOW = 0.5
"""Strength below which an episode ends: half of what opens one, so that it does not open and end in turn."""
ONGOING_FROM = 8
"""Windows after which an open episode is reported again; then after twice as many, and so on."""
SOURCE = "watch"
"""Component that raises the alerts."""
CRITICAL = frozenset({TRIPWIRE, "marked"})
"""Monitors that honest runs do not move."""


class Evidence(NamedTuple):
    """What an alert shows besides the reading."""

    since: int
    """Window in which the evidence began to grow."""
    examples: Callable[[], tuple[str, ...]]
    """Trajectories of the window that show it best."""
    label: str = ""
    """What has become more common, if the monitor is about labels."""


class EpisodeChange(NamedTuple):
    """Where an episode of a monitor stands."""

    key: Key
    """Key of the monitor."""
    monitor: str
    """The monitor."""
    window: int
    """Number of the window."""
    until_ms: int
    """Time of its last observation, Unix milliseconds."""
    history: Sequence[Began]
    """When the last windows began, this one included."""
    opened: Opened | None
    """The open episode, if there is one."""
    admission: AdmissionOrder = AdmissionOrder.NONE
    """What its alerts ask the trainer to do."""


class Turned(NamedTuple):
    """An episode after a window."""

    opened: Opened | None
    """The open episode, if there is one."""
    alerts: list[Alert]
    """At most one alert."""


def turned(at: EpisodeChange, reading: Reading, evidence: Evidence) -> Turned:
    """Returns the episode after a window with ``reading``, and the alert about it, if its state is to be reported."""
    opened = at.opened
    if opened is None:
        if reading.strength < 1:
            return Turned(None, [])
        began = next((each for each in at.history if each.window >= evidence.since), at.history[-1])
        id = derived_id("episode", *at.key, at.monitor, at.window, began.time_ms)
        opened = Opened(id, at.window, began.version, began.time_ms, evidence.examples(), at.admission)
        return Turned(opened, [_alert(at, opened, EpisodeState.OPENED, reading, evidence.label)])
    if reading.strength < RESOLVED_BELOW:
        return Turned(None, [_alert(at, opened, EpisodeState.RESOLVED, reading)])
    lasted, ordered = at.window - opened.window, opened._replace(admission=at.admission)
    if ordered != opened or (lasted >= ONGOING_FROM and lasted & (lasted - 1) == 0):
        return Turned(ordered, [_alert(at, ordered, EpisodeState.ONGOING, reading, evidence.label)])
    return Turned(opened, [])


def abandoned(key: Key, monitor: str, opened: Opened, window: int) -> Alert:
    """Returns the alert that ends an episode whose key is no longer watched: nothing would ever resolve it, and
    admission that it pauses would stay paused. ``window``: number of complete windows of ``key``."""
    message = (
        f"No longer watched: {monitor} ({_place(key)}). Too many task sources, agents and specs were seen since, so "
        "nothing is known about it any more."
    )
    return _ended(key, monitor, opened, window, message)


def accepted(key: Key, monitor: str, opened: Opened, window: int, by: str) -> Alert:
    """Returns the alert that ends an episode because ``by`` accepts what it shows as usual. ``window``: number of
    complete windows of ``key``."""
    message = f"Accepted by {by}: {monitor} ({_place(key)}). What is usual is learnt anew."
    return _ended(key, monitor, opened, window, message, accepted_by=by)


def _ended(key: Key, monitor: str, opened: Opened, window: int, message: str, **details: str) -> Alert:
    """Returns the alert that ends an episode without a reading that resolves it."""
    at = EpisodeChange(key, monitor, window, opened.since_ms, (), opened)
    alert = _alert(at, opened, EpisodeState.RESOLVED, Reading(value=0.0, trajectories=0))
    figures = {"lane": str(key.lane), "window": window, **details}
    return alert.model_copy(update={"message": message, "details": figures})


def _alert(at: EpisodeChange, opened: Opened, state: EpisodeState, reading: Reading, label: str = "") -> Alert:
    key = at.key
    episode = Episode(
        id=opened.id,
        monitor=at.monitor,
        state=state,
        agent=key.agent,
        task_source=key.task_source,
        spec=key.spec,
        since_version=opened.since_version,
        since_ms=opened.since_ms,
        strength=reading.strength,
        examples=list(opened.examples),
        admission=at.admission,
    )
    figures = reading.model_dump(exclude_none=True)
    return Alert(
        run=key.run,
        source=SOURCE,
        kind=f"monitor_{at.monitor}",
        severity=Severity.CRITICAL if at.monitor in CRITICAL else Severity.WARNING,
        message=_message(at, opened, state, reading, label),
        details={"lane": str(key.lane), "window": at.window, **figures, **({"label": label} if label else {})},
        episode=episode,
        runbook=runbook_of(at.monitor),
    )


def _message(at: EpisodeChange, opened: Opened, state: EpisodeState, reading: Reading, label: str) -> str:
    since = f"since version {opened.since_version}" if opened.since_version is not None else "since some windows"
    place = f"{label}; {_place(at.key)}" if label else _place(at.key)
    value = f"{at.monitor} is {in_words(at.monitor, reading.value, reading.expected)} ({place}; {since})"
    match state:
        case EpisodeState.RESOLVED:
            return f"Resolved: {value}."
        case EpisodeState.ONGOING:
            return f"{about(at.monitor)} It continues: {value}.{_paused(at, opened)}"
        case _:
            return (
                f"{about(at.monitor)} {value}. Look at the examples (`headrace watch list`); "
                f"`headrace runbook {runbook_of(at.monitor)}` says how to decide what it is, and "
                f"`headrace watch ack {opened.id} --by NAME` that somebody has seen it.{_paused(at, opened)}"
            )


def _place(key: Key) -> str:
    named = (("agent", key.agent), ("source", key.task_source), ("spec", key.spec))
    return ", ".join(f"{name} {value}" for name, value in named if value) or "all"


def _paused(at: EpisodeChange, opened: Opened) -> str:
    if at.admission is not AdmissionOrder.PAUSE:
        return ""
    return (
        " Admission of this task source is paused until the alert is resolved or accepted, or until "
        f"`headrace watch ack {opened.id} --by NAME --resume`."
    )
