"""From measured values to alerts: opens an episode while a value is beyond its limit, resolves it afterwards. Pure.

    lag of sink   310 s, for 60 s   opened  ·  140 s   resolved (below half of the limit)

Every change is an alert in ``alerts`` with an episode, like those of the monitors. The open ones are folded from there
at the start, so a restarted process neither opens an episode twice nor forgets one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.streams.oncall.conditions import CONDITIONS, Condition, Found, Limits, hold_of, limit_of

SOURCE = "oncall"
"""Component that raises the alerts."""
RESOLVED_BELOW = 0.5
"""Share of the limit below which an episode ends, so that it does not open and end in turn."""
MAX_SUBJECTS = 100
"""Most subjects of a condition that are judged: those with the largest values, and those with an open episode."""

MAX_ENDED = 10_000
"""Most resolved episodes that are remembered."""

_NAMES = {condition.name: condition for condition in CONDITIONS}


class Subject(NamedTuple):
    """What an episode is about."""

    condition: str
    """Name of the condition."""
    run: str
    """Training run."""
    subject: str
    """Consumer group, run, topic, source."""


class Alarms:
    """The episodes of all conditions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._beyond: dict[Subject, int] = {}
        self._open: dict[Subject, Alert] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    @property
    def open(self) -> list[Alert]:
        """The newest alert of each open episode."""
        return list(self._open.values())

    def add(self, alert: Alert) -> None:
        """Fold the next record of ``alerts``, also of other processes. One that is folded again changes nothing: this
        process folds its own when it has written them, and reads them later."""
        episode = alert.episode
        if episode is None or alert.source != SOURCE or episode.monitor not in _NAMES:
            return
        if episode.state is EpisodeState.OPENED and episode.id not in self._ended:
            self._open[Subject(episode.monitor, alert.run, str(alert.details.get("subject", "")))] = alert
        elif episode.state is EpisodeState.RESOLVED:
            self._ended[episode.id] = None
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            self._open = {about: each for about, each in self._open.items() if _id(each) != episode.id}

    def judge(self, measured: Mapping[str, Sequence[Found]], now_ms: int) -> list[Alert]:
        """Returns the alerts that follow from ``measured``: the values of each condition that could be measured, by
        its name. A subject without a value has the value 0. The alerts take effect when they are added."""
        alerts: list[Alert] = []
        for condition in CONDITIONS:
            if condition.name in measured:
                alerts += self._judge(condition, measured[condition.name], now_ms)
        return alerts

    def _judge(self, condition: Condition, values: Sequence[Found], now_ms: int) -> Iterable[Alert]:
        limit, hold_ms = limit_of(condition, self._limits), 1000 * hold_of(condition, self._limits)
        known = {about.subject: about for about in self._open if about.condition == condition.name}
        largest = sorted(values, key=lambda each: (-each.value, each.subject))[:MAX_SUBJECTS]
        still_open = (each for each in values if each.subject[:MAX_NAME] in known)
        found: dict[str, Found] = {}
        for each in (*largest, *still_open):
            found.setdefault(each.subject[:MAX_NAME], each)
        beyond = dict(self._beyond)
        self._beyond = {about: since for about, since in beyond.items() if about.condition != condition.name}
        for subject, each in found.items():
            about = Subject(condition.name, each.run, subject)
            if each.value >= limit:
                since = beyond.get(about, now_ms)
                self._beyond[about] = since
                if about not in self._open and now_ms - since >= hold_ms:
                    yield opened(condition, each, limit, since)
        for about in known.values():
            now = found.get(about.subject)
            if now is None or now.value < RESOLVED_BELOW * limit:
                yield resolved(condition, self._open[about], 0.0 if now is None else now.value)


def opened(condition: Condition, found: Found, limit: float, since_ms: int) -> Alert:
    """Returns the alert that opens an episode of ``condition``; ``since_ms``: Unix milliseconds."""
    subject = found.subject[:MAX_NAME]
    episode = Episode(
        id=derived_id("oncall", condition.name, found.run, subject, since_ms),
        monitor=condition.name,
        state=EpisodeState.OPENED,
        since_ms=since_ms,
        strength=found.value / limit,
    )
    return Alert(
        run=found.run,
        source=SOURCE,
        kind=_kind(condition),
        severity=condition.severity,
        message=f"{condition.about} {_value(condition, found.value, subject)}, alarming from {limit:g} on. "
        f"`{condition.helps}` helps; `headrace runbook {condition.name}` says how to find the cause.",
        # The subject last: the details are named by reasons of others, and an alert is resolved by its subject.
        details={**found.details, "value": found.value, "limit": limit, **({"subject": subject} if subject else {})},
        episode=episode,
        runbook=condition.name,
    )


def resolved(condition: Condition, before: Alert, value: float) -> Alert:
    """Returns the alert that ends the episode of ``before``."""
    if before.episode is None:
        raise ValueError(f"the alert {before.kind} belongs to no episode")
    episode = before.episode.model_copy(update={"state": EpisodeState.RESOLVED, "strength": 0.0})
    subject = str(before.details.get("subject", ""))
    return before.model_copy(
        update={
            "message": f"Resolved: {_value(condition, value, subject)}.",
            "details": {**before.details, "value": value},  # the causes remain: somebody may still look for them
            "episode": episode,
        }
    )


def _id(alert: Alert) -> str:
    return alert.episode.id if alert.episode else ""


def _kind(condition: Condition) -> str:
    return f"oncall_{condition.name.replace('-', '_')}"


def _value(condition: Condition, value: float, subject: str) -> str:
    name = condition.metric.name.removeprefix("headrace.oncall.").replace(".", " ").replace("_", " ")
    number = f"{value:.0f} s" if condition.metric.unit == "s" else f"{value:g}"
    return f"{name}{f' of {subject}' if subject else ''}: {number}"
