"""Which agents and task sources are not admitted, because an alert of their monitors pauses admission. Pure.

    opened, pause (search/wiki)  →  {search/wiki}
    acknowledged, resume         →  {}

Folded from the records of ``alerts``: an episode pauses from its first alert with the order ``pause`` until it is
resolved, until its alerts no longer carry the order, or until somebody resumes admission, which holds for the rest of
the episode. The trajectories in between are rejected as ``admission_paused``, and do not wait: they would be stale
afterwards, and while they waited they would use up the samplers' budget, so that other task sources stood still, too.
"""

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from headrace.schemas.records.alert import AdmissionOrder, Alert, EpisodeState
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.task_labels import task_source

MAX_EPISODES = 10_000
"""Most episodes that are remembered; beyond, the one that was heard of first is dropped."""


class PausedSource(NamedTuple):
    """What is not admitted."""

    agent: str
    """Agent."""
    task_source: str
    """Task source; empty for tasks that name none."""


Paused: TypeAlias = frozenset[PausedSource]

NOTHING_PAUSED: Paused = frozenset()


def source_of(trajectory: Trajectory) -> PausedSource | None:
    """Returns the agent and the task source of ``trajectory``; ``None`` without its start, which is never admitted."""
    started = trajectory.started
    return None if started is None else PausedSource(started.agent, task_source(started.task))


class Pauses:
    """The episodes of one run that pause admission."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._pausing: dict[str, PausedSource] = {}
        self._resumed: dict[str, None] = {}

    @property
    def paused(self) -> Paused:
        """What is not admitted now."""
        return frozenset(source for id, source in self._pausing.items() if id not in self._resumed)

    def episodes(self, paused: Collection[PausedSource]) -> dict[PausedSource, list[str]]:
        """Returns the ids of the episodes that pause each of ``paused``."""
        return {
            source: [id for id, each in self._pausing.items() if each == source and id not in self._resumed]
            for source in sorted(paused)
        }

    def add(self, alert: Alert) -> None:
        """Fold the next record of ``alerts``."""
        episode = alert.episode
        if episode is None or alert.run != self._run:
            return
        if episode.state is EpisodeState.ACKNOWLEDGED:
            if episode.admission is AdmissionOrder.RESUME and episode.id in self._pausing:
                self._resumed[episode.id] = None
                if len(self._resumed) > MAX_EPISODES:
                    del self._resumed[next(iter(self._resumed))]
            return
        if episode.state is EpisodeState.RESOLVED:
            self._resumed.pop(episode.id, None)
        if episode.state is EpisodeState.RESOLVED or episode.admission is not AdmissionOrder.PAUSE:
            self._pausing.pop(episode.id, None)
            return
        self._pausing[episode.id] = PausedSource(episode.agent, episode.task_source)
        if len(self._pausing) > MAX_EPISODES:
            oldest = next(iter(self._pausing))
            del self._pausing[oldest]
            self._resumed.pop(oldest, None)
