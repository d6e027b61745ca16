"""Progress: the trainer's state for display, updated by its loop. Lines, panel, gauges and writers are watchers.

A watcher must not block, and cannot stop training: one that raises is reported once and not called again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.trainer.progress.pace import Phase, StepPace

_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """An observer of progress."""

    def changed(self, progress: "Progress") -> None:
        """The phase or the number of groups has changed; also called a few times per second during waits for groups."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step has been announced, with the ``metrics`` of its record."""


class Progress:
    """Phase, groups, newest metrics and pace. Only the loop writes it; any thread may read it."""

    def __init__(self, watchers: Sequence[Watcher] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Progress of a trainer that has not started; ``clock`` returns seconds."""
        self.phase = Phase.STARTING
        self.version = 0
        """Newest version announced."""
        self.groups = 0
        """Groups gathered for the current step."""
        self.wanted = 0
        """Groups that a step needs."""
        self.steps = 0
        """Steps announced by this process."""
        self.metrics: Mapping[str, float] = {}
        """Metrics of the newest step; empty before the first."""
        self.pace = StepPace()
        self.outage = ""
        """Description of the current outage; empty if there is none."""
        self._outage_began = 0.0
        self._watchers = list(watchers)
        self._clock = clock
        self._entered = self._begun = clock()
        self._spent_s: dict[Phase, float] = {}
        self.newest_s: Mapping[Phase, float] = {}
        """Seconds that this process's newest step spent in each phase; empty before the first."""

    @property
    def since_s(self) -> float:
        """Seconds in the current phase."""
        return self._clock() - self._entered

    @property
    def since_step_s(self) -> float:
        """Seconds since the last step was announced, or since the trainer resumed."""
        return self._clock() - self._begun

    @property
    def outage_s(self) -> float:
        """Seconds since the current outage began; 0 if there is none."""
        return self._clock() - self._outage_began if self.outage else 0.0

    @property
    def next_weights_s(self) -> float | None:
        """Estimated seconds until the next version is announced; ``None`` if unknown."""
        return self.pace.next_weights_s(self.phase, self.since_s, self.groups, self.wanted)

    def begin(self, version: int, wanted: int) -> None:
        """Record that the trainer has resumed after ``version``; a step needs ``wanted`` groups."""
        self.version, self.wanted = version, wanted
        self._spend()
        self._begun, self._spent_s = self._entered, {}

    def enter(self, phase: Phase) -> None:
        """Enter ``phase``. ``WAITING`` begins a new step."""
        self._spend()
        self.phase = phase
        if phase == Phase.WAITING:
            self.groups = 0
        self._notify(lambda watcher: watcher.changed(self))

    def gathered(self, groups: int) -> None:
        """Record that the current step has ``groups`` groups."""
        self.groups = groups
        self._notify(lambda watcher: watcher.changed(self))

    def outage_lasts(self, outage: str, lasted_s: float) -> None:
        """Record that a disk, the object store or the broker has been unavailable for ``lasted_s`` seconds."""
        self.outage, self._outage_began = outage, self._clock() - lasted_s
        self._notify(lambda watcher: watcher.changed(self))

    def outage_ended(self) -> None:
        """Record that the outage has ended."""
        if self.outage:
            self.outage = ""
            self._notify(lambda watcher: watcher.changed(self))

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record that ``step`` has been announced with ``metrics``."""
        self._spend()
        self.newest_s, self._begun, self._spent_s = self._spent_s, self._entered, {}
        self.pace = self.pace.after(self.newest_s)
        self.version, self.metrics = step, metrics
        self.steps += 1
        self._notify(lambda watcher: watcher.stepped(step, metrics))

    def _spend(self) -> None:
        """Add the seconds in the current phase to its sum: a retried step passes through phases twice."""
        now = self._clock()
        self._spent_s[self.phase] = self._spent_s.get(self.phase, 0.0) + now - self._entered
        self._entered = now

    def _notify(self, call: Callable[[Watcher], None]) -> None:
        for watcher in [*self._watchers]:
            try:
                call(watcher)
            except Exception:  # noqa: BLE001  no error of a watcher may stop training
                _log.warning("%s failed and is not called any more", type(watcher).__name__, exc_info=True)
                self._watchers.remove(watcher)
