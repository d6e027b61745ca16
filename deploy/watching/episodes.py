"""Episodes of the monitors, folded from the records of ``alerts``, as `headrace watch` prints and acknowledges them.

0f3ebc7e  opened        talks     0.19, usually 0.05   1.08  since v64   search/wiki     t-4417 t-4418 …
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.schemas.records.alert import Alert, Episode, EpisodeState

MAX_EPISODES = 1000
"""Most episodes that are kept: the newest."""


@dataclass(frozen=True, slots=True)
class EpisodeStatus:
    """What is known of an episode."""

    newest: Alert
    """Its newest alert of a monitor: state, strength, figures."""
    episode: Episode
    """Its fields."""
    acknowledged_by: tuple[str, ...] = ()
    """Who acknowledged it, in order."""

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
            if known is not None and episode.by not in known.acknowledged_by:
                found[episode.id] = EpisodeStatus(known.newest, known.episode, (*known.acknowledged_by, episode.by))
            continue
        found[episode.id] = EpisodeStatus(alert, episode, known.acknowledged_by if known else ())
        if len(found) > MAX_EPISODES:
            del found[next(iter(found))]
    return list(found.values())


class NoEpisode(LookupError):
    """No episode, or several, have the name; the message says which there are."""


def named(known: Iterable[EpisodeStatus], name: str) -> EpisodeStatus:
    """Returns the episode whose id begins with ``name``. Raises :class:`NoEpisode`."""
    fitting = [each for each in known if each.episode.id.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise NoEpisode(f"no alert {name!r}: `headrace watch list --all` shows them")
    raise NoEpisode(f"{name!r} are several alerts: {', '.join(each.episode.id for each in fitting[:5])}")


def acknowledgement(status: EpisodeStatus, by: str) -> Alert:
    """Returns the alert by which ``by`` acknowledges an episode."""
    episode = status.episode.model_copy(update={"state": EpisodeState.ACKNOWLEDGED, "by": by})
    return status.newest.model_copy(
        update={"message": f"{by} acknowledged {episode.monitor}.", "episode": episode, "details": {}}
    )


def row(status: EpisodeStatus, *, full: bool = False) -> str:
    """Returns an episode as a line; ids are shortened unless ``full``."""
    episode, figures = status.episode, status.newest.details
    state = str(episode.state)
    if status.acknowledged_by:
        state += f", seen by {', '.join(status.acknowledged_by)}"
    usual = f", usually {figures['expected']:.3g}" if "expected" in figures else ""
    value = f"{figures['value']:.3g}{usual}" if "value" in figures else ""
    since = f"since v{episode.since_version}" if episode.since_version is not None else ""
    where = "/".join(part for part in (status.newest.run, episode.agent, episode.task_source, episode.spec) if part)
    id = episode.id if full else episode.id[:8]
    shown = episode.examples if full else episode.examples[:2]
    examples = " ".join(shown) + (" …" if len(shown) < len(episode.examples) else "")
    parts = (id, state, episode.monitor, value, f"strength {episode.strength:.2g}", since, where, examples)
    return "  ".join(part for part in parts if part)
