"""Progress: where a trainer is, kept by its loop for whoever looks. Lines, panel, gauges and writers are watchers.

A watcher never holds training up and never stops it: one that raises is reported once and not called again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.trainer.progress.pace import Phase, StepPace

_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Somebody who looks."""

    def changed(self, progress: "Progress") -> None:
        """The phase or the number of groups is another; also a few times a second while groups are awaited."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step has been announced. ``metrics`` are those of its record."""


class Progress:
    """Phase, groups, newest metrics, pace. Written by the loop alone; read by any thread."""

    def __init__(self, watchers: Sequence[Watcher] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Progress of a trainer that has not begun; ``clock`` gives seconds."""
        self.phase = Phase.STARTING
        self.version = 0
        """Newest version announced."""
        self.groups = 0
        """Groups that the step under way has."""
        self.wanted = 0
        """Groups that a step needs."""
        self.steps = 0
        """Steps announced by this process."""
        self.metrics: Mapping[str, float] = {}
        """Of the newest step; empty before one."""
        self.pace = StepPace()
        self.outage = ""
        """What is out of reach, in a sentence; empty where nothing is."""
        self._outage_began = 0.0
        self._watchers = list(watchers)
        self._clock = clock
        self._entered = self._begun = clock()
        self._spent_s: dict[Phase, float] = {}
        self.newest_s: Mapping[Phase, float] = {}
        """Seconds that the newest step announced by this process spent in each phase; empty before one."""

    @property
    def since_s(self) -> float:
        """Seconds in the present phase."""
        return self._clock() - self._entered

    @property
    def since_step_s(self) -> float:
        """Seconds since a step was announced, or since the trainer took up its position."""
        return self._clock() - self._begun

    @property
    def outage_s(self) -> float:
        """Seconds that the present outage has lasted; 0 where there is none."""
        return self._clock() - self._outage_began if self.outage else 0.0

    @property
    def next_weights_s(self) -> float | None:
        """Seconds until the next version is announced, as far as can be said."""
        return self.pace.next_weights_s(self.phase, self.since_s, self.groups, self.wanted)

    def begin(self, version: int, wanted: int) -> None:
        """The trainer has taken up its position behind ``version``; a step needs ``wanted`` groups."""
        self.version, self.wanted = version, wanted
        self._spend()
        self._begun, self._spent_s = self._entered, {}

    def enter(self, phase: Phase) -> None:
        """What is done from now on. Waiting begins a new step."""
        self._spend()
        self.phase = phase
        if phase == Phase.WAITING:
            self.groups = 0
        self._notify(lambda watcher: watcher.changed(self))

    def gathered(self, groups: int) -> None:
        """The step under way has ``groups`` groups."""
        self.groups = groups
        self._notify(lambda watcher: watcher.changed(self))

    def outage_lasts(self, outage: str, lasted_s: float) -> None:
        """A disk, the object store or the broker has been out of reach for ``lasted_s`` seconds."""
        self.outage, self._outage_began = outage, self._clock() - lasted_s
        self._notify(lambda watcher: watcher.changed(self))

    def outage_ended(self) -> None:
        """Nothing is out of reach."""
        if self.outage:
            self.outage = ""
            self._notify(lambda watcher: watcher.changed(self))

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """``step`` has been announced with ``metrics``."""
        self._spend()
        self.newest_s, self._begun, self._spent_s = self._spent_s, self._entered, {}
        self.pace = self.pace.after(self.newest_s)
        self.version, self.metrics = step, metrics
        self.steps += 1
        self._notify(lambda watcher: watcher.stepped(step, metrics))

    def _spend(self) -> None:
        """Count the seconds in the present phase to it: a step that is tried again goes through phases twice."""
        now = self._clock()
        self._spent_s[self.phase] = self._spent_s.get(self.phase, 0.0) + now - self._entered
        self._entered = now

    def _notify(self, call: Callable[[Watcher], None]) -> None:
        for watcher in [*self._watchers]:
            try:
                call(watcher)
            except Exception:  # noqa: BLE001  whatever it is, training goes on
                _log.warning("%s failed and is not called any more", type(watcher).__name__, exc_info=True)
                self._watchers.remove(watcher)
