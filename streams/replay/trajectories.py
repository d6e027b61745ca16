"""A range of an ``events`` partition folded again, by the fold that live processing runs.

A trajectory that began before the range lacks its first events here. Which one lacks them for that reason is known: it
is open where the range begins, so it shows within the idle timeout. Such a trajectory is left out and counted, and so
is what is still open at the end. Everything else is what the live assembler wrote, byte for byte.
"""

from collections import Counter
from typing import NamedTuple

from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.assembly.assemble import settle
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History
from headrace.streams.raw import LogRecord, Outgoing

CUT = "trajectories_cut_at_begin"
OPEN = "trajectories_open_at_end"


class LeftOut(NamedTuple):
    """A trajectory that began before the range."""

    closed_ms: int
    """Log time at which it closed: near it, its group lacks a member."""


class Rederivation:
    """The fold of one partition of the range."""

    def __init__(self, limits: FoldLimits, *, begins_log: bool) -> None:
        """``begins_log``: nothing stood before the range, so nothing can have been cut."""
        self.counts: Counter[str] = Counter()
        """What was read and left out."""
        self._fold = PartitionFold(limits)
        self._limits = limits
        self._begins_log = begins_log
        self._begun_ms: int | None = None
        self._cut_before_ms = 0

    def take(self, record: LogRecord) -> list[Outgoing | LeftOut]:
        """The trajectories and dead letters that the next record brings about, and what is left out."""
        outcomes = self._fold.arrive(record)
        if self._begun_ms is None:
            self._begun_ms = self._fold.idle_ms
        if not self._begins_log and self._fold.idle_ms - self._begun_ms < self._limits.idle_timeout_ms:
            self._cut_before_ms = self._fold.log_ms + 1
        out: list[Outgoing | LeftOut] = []
        for outcome in outcomes:
            if isinstance(outcome, History) and outcome.missing and outcome.first_ms < self._cut_before_ms:
                self.counts[CUT] += 1
                out.append(LeftOut(outcome.closed_ms))
            else:
                self.counts[TRAJECTORIES.name] += isinstance(outcome, History)
                out += settle(outcome)
        return out

    def finish(self) -> None:
        """Nothing more is read."""
        self.counts[OPEN] = self._fold.open_count
