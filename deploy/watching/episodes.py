"""Episodes of the monitors, folded from the records of ``alerts``, as `headrace watch` prints and acknowledges them.

0f3ebc7e  opened  talks  0.19, usual 0.05  strength 1.1  since v64  r1/search/wiki  runbook reward-hack  t-4417 …
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState
from headrace.schemas.records.watch import Lane, LevelAccepted
from headrace.streams.watch.monitors import in_words

MAX_EPISODES = 1000
"""Most episodes that are kept: the open ones, and the newest of the others."""

MIN_PREFIX = 4
"""Fewest characters of an id that name an episode: an empty variable of a shell must not name the only one."""

_IN_THE_ROW = ("value", "limit", "subject")
"""Details of an alert of the process on call that its row or its message has."""


@dataclass(frozen=True, slots=True)
class EpisodeStatus:
    """What is known of an episode."""

    newest: Alert
    """Its newest alert of a monitor: state, strength, figures."""
    episode: Episode
    """Its fields."""
    acknowledged_by: tuple[str, ...] = ()
    """Who acknowledged it, in order."""
    resumed_by: tuple[str, ...] = ()
    """Who resumed admission although it is open, in order."""

    @property
    def pauses(self) -> bool:
        """Whether the trainer is asked to reject the trajectories that it is about."""
        return self.is_open and self.episode.admission is AdmissionOrder.PAUSE and not self.resumed_by

    @property
    def is_open(self) -> bool:
        """Whether its monitor still alarms."""
        return self.episode.state is not EpisodeState.RESOLVED


def episodes(alerts: Iterable[Alert]) -> list[EpisodeStatus]:
    """Returns the episodes of ``alerts``, which are in the order of the log; the one that was opened first is first.
    Alerts that belong to no episode are left out.
    """
    found: dict[str, EpisodeStatus] = {}
    for alert in alerts:
        if (episode := alert.episode) is None:
            continue
        known = found.get(episode.id)
        if episode.state is EpisodeState.ACKNOWLEDGED:
            if known is not None:
                found[episode.id] = _acknowledged(known, episode)
            continue
        found[episode.id] = replace(known, newest=alert, episode=episode) if known else EpisodeStatus(alert, episode)
        if len(found) > MAX_EPISODES:
            ended = (id for id, each in found.items() if not each.is_open)
            del found[next(ended, next(iter(found)))]
    return list(found.values())


def _acknowledged(known: EpisodeStatus, by: Episode) -> EpisodeStatus:
    if by.by not in known.acknowledged_by:
        known = replace(known, acknowledged_by=(*known.acknowledged_by, by.by))
    if by.admission is AdmissionOrder.RESUME and by.by not in known.resumed_by:
        known = replace(known, resumed_by=(*known.resumed_by, by.by))
    return known


class NoEpisode(LookupError):
    """No episode, or several, have the name; the message says which there are."""


def named(known: Iterable[EpisodeStatus], name: str, *, prefers_open: bool = False) -> EpisodeStatus:
    """Returns the episode whose id is ``name``, or begins with it if that has at least 4 characters.

    ``prefers_open``: whether resolved ones are left out if an open one fits. Raises :class:`NoEpisode`.
    """
    fitting = [each for each in known if each.episode.id.startswith(name)] if len(name) >= MIN_PREFIX else []
    fitting = [each for each in known if each.episode.id == name] or fitting
    if prefers_open:
        fitting = [each for each in fitting if each.is_open] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        found = ", ".join(f"{each.episode.id} ({each.episode.monitor}, {each.episode.state})" for each in fitting[:5])
        raise NoEpisode(f"{name!r} are several alerts: {found}: name one with more characters of its id")
    if len(name) < MIN_PREFIX:
        raise NoEpisode(
            f"{name!r} names no alert: give {MIN_PREFIX} characters of its id or more; `headrace watch list` shows it"
        )
    raise NoEpisode(f"no alert {name!r}: `headrace watch list --all` shows them")


def pausing_besides(status: EpisodeStatus, known: Iterable[EpisodeStatus]) -> list[EpisodeStatus]:
    """Returns the other episodes that pause admission of the same agent and task source in the same run."""
    return [
        each
        for each in known
        if each.pauses and each.episode.id != status.episode.id and _source(each) == _source(status)
    ]


def _source(status: EpisodeStatus) -> tuple[str, str, str]:
    return status.newest.run, status.episode.agent, status.episode.task_source


def acknowledgement(status: EpisodeStatus, by: str, admission: AdmissionOrder = AdmissionOrder.NONE) -> Alert:
    """Returns the alert by which ``by`` acknowledges an episode; with ``RESUME``, the trainer is asked to admit its
    trajectories again."""
    episode = status.episode.model_copy(update={"state": EpisodeState.ACKNOWLEDGED, "by": by, "admission": admission})
    done = "acknowledged and resumed admission" if admission is AdmissionOrder.RESUME else "acknowledged"
    return status.newest.model_copy(
        update={"message": f"{by} {done}: {episode.monitor}.", "episode": episode, "details": {}}
    )


class NotAccepted(ValueError):
    """The level of an alert cannot be accepted; the message says why."""


def accepted_level(status: EpisodeStatus, by: str) -> LevelAccepted:
    """Returns the record by which ``by`` accepts what an alert shows as usual. Raises :class:`NotAccepted`."""
    episode, lane = status.episode, status.newest.details.get("lane")
    name = f"{episode.monitor} ({episode.id[:8]})"
    if not status.is_open:
        raise NotAccepted(f"{name} is resolved: there is nothing to accept")
    if lane not in list(Lane):
        raise NotAccepted(f"{name} is no alert of a monitor: it ends when its condition does")
    return LevelAccepted(
        episode=episode.id,
        monitor=episode.monitor,
        lane=Lane(lane),
        run=status.newest.run,
        agent=episode.agent,
        task_source=episode.task_source,
        spec=episode.spec,
        by=by,
    )


def row(status: EpisodeStatus, *, full: bool = False) -> str:
    """Returns an episode as a line; ids are shortened unless ``full``."""
    episode, figures = status.episode, status.newest.details
    state = str(episode.state)
    if status.acknowledged_by:
        state += f", seen by {', '.join(status.acknowledged_by)}"
    if status.pauses:
        state += ", admission paused"
    elif status.is_open and status.resumed_by:
        state += f", admission resumed by {', '.join(status.resumed_by)}"
    value = _value_in_words(episode.monitor, figures.get("value"), figures.get("expected"))
    value += f" of {figures['label']}" if "label" in figures else ""
    since = f"since v{episode.since_version}" if episode.since_version is not None else ""
    about = (status.newest.run, str(figures.get("subject", "")), episode.agent, episode.task_source, episode.spec)
    where = "/".join(dict.fromkeys(part for part in about if part))
    id = episode.id if full else episode.id[:8]
    shown = episode.examples if full else episode.examples[:2]
    examples = " ".join(shown) + (" …" if len(shown) < len(episode.examples) else "")
    runbook = f"runbook {status.newest.runbook}" if status.newest.runbook else ""
    parts = (id, state, episode.monitor, value, f"strength {episode.strength:.2g}", since, where, runbook, examples)
    return "  ".join(part for part in parts if part)


def _value_in_words(monitor: str, value: Any, usual: Any) -> str:
    """Returns a value beside the usual one. Details may be anything: a number that is not finite is a text there."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    return in_words(monitor, value, usual if isinstance(usual, int | float) else None)


def explanation(status: EpisodeStatus) -> list[str]:
    """Returns what stands below the row of an episode: since when it lasts, its message, and, of a condition of the
    process on call, what was measured beside the value: a topic, a partition, the commonest causes."""
    began = datetime.fromtimestamp(status.episode.since_ms / 1000, UTC)
    measured = {} if "lane" in status.newest.details else status.newest.details  # a monitor's details are its readings
    return [
        f"    since {began:%Y-%m-%d %H:%M:%S} UTC, {status.newest.severity}",
        f"    {status.newest.message}",
        *(f"    {name}: {value}" for name, value in measured.items() if name not in _IN_THE_ROW),
    ]
