"""Joins trajectories with feedback: when a trajectory is scored, and with which feedback. One partition of both topics.

    trajectory ──▶ waits until stream time is past its end + window ──▶ revision 0, with the feedback given by then
    feedback ──before the trajectory──▶ kept
             ──later──▶ revision n + 1, with all feedback so far
             ──twice──▶ nothing

The window begins when the trajectory ended by the broker's clock (the timestamp of its record), which also stamps
feedback; an agent's clock is not used. Whether feedback was in time depends on its timestamp and not on when it is
processed, so any interleaving of the two topics, and any duplicate delivery, gives the same rewards. The join keeps the
offset of a trajectory, never its tokens. Due rewards are computed outside and passed back with :meth:`Join.decided`;
the I/O layer writes rewards and state in one transaction.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headrace.schemas.records.reward import Reward
from headrace.streams.raw import Outgoing
from headrace.streams.rewards.spec import Feedback, Verdict
from headrace.streams.scoring.attempt import AttemptState, memory_of

WINDOW_OVERFLOW = "window_overflow"
"""Reason for no total: too many trajectories waited for feedback, so this one was scored early."""


SURPLUS = "feedback_surplus"
"""Counted: feedback beyond ``max_feedback`` of its trajectory."""
TOO_LATE = "feedback_too_late"
"""Counted: feedback later than ``remember_ms`` after the window."""
UNCLAIMED = "feedback_unclaimed"
"""Counted: feedback that was dropped before its trajectory arrived."""
FORGOTTEN_EARLY = "forgotten_early"
"""Counted: states dropped because of ``max_remembered``, ``max_unclaimed`` or ``max_bytes``."""
TRAJECTORY_GONE = "trajectory_gone"
"""Reason for no total: retention deleted the trajectory before its window ended. Also counts revisions that are skipped
for this reason."""


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """Limits of time and memory, for each partition."""

    remember_ms: int = 24 * 3600 * 1000
    """Stream time after the window during which feedback creates revisions; feedback that arrives before its trajectory
    is kept as long."""
    max_open: int = 50_000
    """Most trajectories that wait for feedback; beyond it the next one due gets no total (``window_overflow``)."""
    max_remembered: int = 200_000
    """Most scored trajectories that are remembered; beyond it the oldest is dropped."""
    max_unclaimed: int = 50_000
    """Most trajectories of which only feedback is known; beyond it the oldest is dropped. Any producer can create them,
    so they have a separate limit and never displace scored trajectories."""
    max_bytes: int = 512 * 1024 * 1024
    """Approximate memory of all state. Beyond it, unclaimed feedback is dropped first, then the oldest scored
    trajectories; and a trajectory that exceeds its share takes no more feedback."""
    max_feedback: int = 64
    """Most feedback records that count for one trajectory; further ones do not affect its reward."""


@dataclass(frozen=True, slots=True)
class TrajectoryArrival:
    """A trajectory that enters the join."""

    trajectory_id: str
    """The trajectory."""
    offset: int
    """Its offset in ``trajectories``."""
    arrived_ms: int
    """Timestamp of its record: when its last event arrived, by the clock that also stamps feedback."""
    window_ms: int = 0
    """How long its reward waits for feedback from ``arrived_ms`` on."""
    takes_feedback: bool = True
    """Whether its spec makes revisions."""
    origin: str | None = None
    """``traceparent`` of its record."""
    blank: Reward | None = None
    """Its reward if it can no longer be read when its window ends."""


@dataclass(frozen=True, slots=True)
class DueReward:
    """A reward that is due and not yet computed."""

    trajectory_id: str
    """The trajectory."""
    offset: int
    """Its offset in ``trajectories``."""
    revision: int
    """0 for the first reward."""
    feedback: tuple[Feedback, ...]
    """The feedback to use."""
    time_ms: int
    """Stream time of the decision."""
    unscored: str | None = None
    """Reason for no total, regardless of the spec."""
    blank: Reward | None = None
    """The reward if the trajectory can no longer be read; ``None`` for revisions."""


@dataclass(frozen=True, slots=True)
class DecidedReward:
    """A computed reward."""

    reward: Reward
    """The reward."""
    time_ms: int
    """Stream time of the decision: the timestamp of its record."""
    origin: str | None
    """``traceparent`` of the trajectory's record."""


@dataclass(slots=True)
class JoinChanges:
    """Effects of records and of time on the join. Every ``due`` reward must be decided before they are written."""

    due: list[DueReward] = field(default_factory=list)
    """Rewards to compute, in order."""
    decided: list[DecidedReward] = field(default_factory=list)
    """The computed rewards."""
    alerts: list[Outgoing] = field(default_factory=list)
    """Alerts about them."""
    stored: dict[str, AttemptState | None] = field(default_factory=dict)
    """Trajectory id → state to store; ``None`` deletes it."""


class Join:
    """The join of one partition. Mutable; its state depends only on its inputs."""

    def __init__(self, limits: JoinLimits, stored: Mapping[str, AttemptState] | None = None) -> None:
        """Start empty, or from the ``stored`` state by trajectory id."""
        self.limits = limits
        self.counts: Counter[str] = Counter()
        """Counts of reached limits, by name."""
        self._attempts = dict(stored or {})
        self._index()

    def __len__(self) -> int:
        """Number of trajectories with state."""
        return len(self._attempts)

    @property
    def open(self) -> int:
        """Trajectories that wait for their window to end."""
        return self._open

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all state, in bytes."""
        return self._bytes

    @property
    def newest_ms(self) -> int:
        """Newest timestamp in the state; 0 if it is empty."""
        known = self._attempts.values()
        return max((max([one.arrived_ms, *(each.time_ms for each in one.heard)]) for one in known), default=0)

    @contextmanager
    def undone_if_it_raises(self, name: str, changes: JoinChanges) -> Iterator[None]:
        """Context for processing one record about ``name``: if it raises, all effects of the record are undone."""
        before, dues = self._attempts.get(name), len(changes.due)
        was_stored, stored = name in changes.stored, changes.stored.get(name)
        try:
            yield
        except BaseException:
            self._attempts.pop(name, None)
            if before is not None:
                self._attempts[name] = before
            changes.stored.pop(name, None)
            if was_stored:
                changes.stored[name] = stored
            changes.due[dues:] = [due for due in changes.due[dues:] if due.trajectory_id != name]
            self._index()
            raise

    def _index(self) -> None:
        """Rebuild the heaps of due and remembered trajectories, and the counters."""
        known = self._attempts.items()
        self._due = [(one.since_ms, name) for name, one in known if one.is_open]
        self._unclaimed = [(one.since_ms, name) for name, one in known if one.offset is None]
        self._memory = [(one.since_ms, name) for name, one in known if one.revisions]
        self._open, self._claims = len(self._due), len(self._unclaimed)
        self._bytes = sum(memory_of(name, one) for name, one in known)
        for heap in (self._due, self._unclaimed, self._memory):
            heapify(heap)

    def add_trajectory(self, arrival: TrajectoryArrival, changes: JoinChanges) -> None:
        """Add a trajectory; it is due immediately if its spec has no window."""
        name = arrival.trajectory_id
        before = self._attempts.get(name)
        if before is not None and before.offset is not None:
            return
        after = AttemptState(
            since_ms=arrival.arrived_ms + arrival.window_ms,
            offset=arrival.offset,
            arrived_ms=arrival.arrived_ms,
            origin=arrival.origin,
            takes_feedback=arrival.takes_feedback,
            heard=before.heard if before else [],
            blank=arrival.blank,
        )
        self._keep(name, after, changes)
        self._open += 1
        self._claims -= before is not None
        if arrival.window_ms == 0:
            self._close(name, changes)
            return
        heappush(self._due, (after.since_ms, name))
        while self._open > self.limits.max_open:
            self.counts[WINDOW_OVERFLOW] += 1
            self._close(self._next_due(), changes, unscored=WINDOW_OVERFLOW, now_ms=arrival.arrived_ms)

    def add_feedback(self, trajectory_id: str, feedback: Feedback, changes: JoinChanges) -> None:
        """Add feedback, which may arrive before or after its trajectory."""
        before = self._attempts.get(trajectory_id)
        if before is None:
            self._keep(trajectory_id, AttemptState(since_ms=feedback.time_ms, heard=[feedback]), changes)
            self._claims += 1
            self._remember(trajectory_id, changes)
        elif any(each.id == feedback.id for each in before.heard):
            return
        elif len(before.heard) >= self.limits.max_feedback or self._takes_too_much(trajectory_id, before):
            self.counts[SURPLUS] += 1
        elif before.revisions:
            self._revise(trajectory_id, feedback, changes)
        else:
            self._keep(trajectory_id, before.model_copy(update={"heard": [*before.heard, feedback]}), changes)

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`pass_time` may have work to do."""
        return bool(self._due and self._due[0][0] < now_ms) or any(
            heap and heap[0][0] + self.limits.remember_ms < now_ms for heap in (self._unclaimed, self._memory)
        )

    def pass_time(self, now_ms: int, changes: JoinChanges, *, at_most: int | None = None) -> None:
        """Advance stream time to ``now_ms``: close windows that have ended, at most ``at_most``, and drop old state."""
        while self._due and self._due[0][0] < now_ms and (at_most is None or len(changes.due) < at_most):
            self._close(self._next_due(), changes)
        for heap in (self._unclaimed, self._memory):
            while heap and heap[0][0] + self.limits.remember_ms < now_ms and self._forget_oldest(heap, changes):
                pass

    def verdicts(self, trajectory_id: str) -> Mapping[str, Verdict]:
        """Returns the verdicts of judges so far, by term."""
        return self._attempts[trajectory_id].verdicts

    def decided(self, due: DueReward, reward: Reward, verdicts: Mapping[str, Verdict], changes: JoinChanges) -> None:
        """Record that ``due`` was scored; ``verdicts`` are the new verdicts of judges."""
        attempt = self._attempts[due.trajectory_id]
        changes.decided.append(DecidedReward(reward, due.time_ms, attempt.origin))
        if verdicts:
            kept = attempt.model_copy(update={"verdicts": attempt.verdicts | dict(verdicts)})
            self._keep(due.trajectory_id, kept, changes)

    def _close(
        self, name: str, changes: JoinChanges, *, unscored: str | None = None, now_ms: int | None = None
    ) -> None:
        """Close the window of ``name``: revision 0, and a revision for each feedback that is too late for it.

        With ``now_ms`` it closes early, at that stream time.
        """
        attempt = self._attempts[name]
        in_time = [each for each in attempt.heard if each.time_ms <= attempt.since_ms]
        late = [each for each in attempt.heard if each.time_ms > attempt.since_ms]
        if now_ms is not None and now_ms < attempt.since_ms:
            attempt = attempt.model_copy(update={"since_ms": max(now_ms, attempt.arrived_ms)})
        self._open -= 1
        self._make(name, attempt.model_copy(update={"heard": in_time}), attempt.since_ms, changes, unscored)
        for feedback in late:
            self._revise(name, feedback, changes)
        self._remember(name, changes)

    def _revise(self, name: str, feedback: Feedback, changes: JoinChanges) -> None:
        """Handle feedback on a scored trajectory: a revision, if its spec makes any and the feedback is in time."""
        attempt = self._attempts[name]
        if not attempt.takes_feedback:
            return
        if feedback.time_ms > attempt.since_ms + self.limits.remember_ms:
            self.counts[TOO_LATE] += 1
            return
        heard = [*attempt.heard, feedback]
        self._make(name, attempt.model_copy(update={"heard": heard}), feedback.time_ms, changes)

    def _make(
        self, name: str, attempt: AttemptState, time_ms: int, changes: JoinChanges, unscored: str | None = None
    ) -> None:
        """Make the next reward of ``attempt`` due."""
        assert attempt.offset is not None, f"{name} is not known"
        due = DueReward(
            trajectory_id=name,
            offset=attempt.offset,
            revision=attempt.revisions,
            feedback=tuple(attempt.heard),
            time_ms=max(time_ms, attempt.since_ms, attempt.arrived_ms),
            unscored=unscored,
            blank=attempt.blank,
        )
        changes.due.append(due)
        self._keep(name, attempt.model_copy(update={"revisions": attempt.revisions + 1, "blank": None}), changes)

    def _next_due(self) -> str:
        return heappop(self._due)[1]

    def _takes_too_much(self, name: str, attempt: AttemptState) -> bool:
        """Whether total memory exceeds its limit and ``attempt`` exceeds its share."""
        limits = self.limits
        return self._bytes > limits.max_bytes and memory_of(name, attempt) > limits.max_bytes // limits.max_open

    def _remember(self, name: str, changes: JoinChanges) -> None:
        attempt = self._attempts[name]
        heappush(self._unclaimed if attempt.offset is None else self._memory, (attempt.since_ms, name))
        limits = self.limits
        while self._claims > limits.max_unclaimed and self._forget_oldest(self._unclaimed, changes, early=True):
            pass
        while len(self._attempts) - self._open - self._claims > limits.max_remembered:
            if not self._forget_oldest(self._memory, changes, early=True):
                break
        while self._bytes > limits.max_bytes:
            if not any(self._forget_oldest(heap, changes, early=True) for heap in (self._unclaimed, self._memory)):
                break

    def _forget_oldest(self, heap: list[tuple[int, str]], changes: JoinChanges, *, early: bool = False) -> bool:
        """Drop the oldest state in ``heap``; ``False`` if that is impossible. State that just changed must be written
        first and cannot be dropped.
        """
        if not heap:
            return False
        since_ms, name = heap[0]
        attempt = self._attempts.get(name)
        mine = attempt is not None and (attempt.offset is None if heap is self._unclaimed else attempt.revisions > 0)
        if attempt is not None and mine and attempt.since_ms == since_ms:
            if name in changes.stored:
                return False
            if attempt.offset is None:
                self.counts[UNCLAIMED] += len(attempt.heard)
                self._claims -= 1
            if early:
                self.counts[FORGOTTEN_EARLY] += 1
            del self._attempts[name]
            self._bytes -= memory_of(name, attempt)
            changes.stored[name] = None
        # Else the heap entry is stale: the trajectory arrived after its feedback and is in another heap.
        heappop(heap)
        return True

    def _keep(self, name: str, attempt: AttemptState, changes: JoinChanges) -> None:
        before = self._attempts.get(name)
        self._bytes += memory_of(name, attempt) - (memory_of(name, before) if before else 0)
        self._attempts[name] = attempt
        changes.stored[name] = attempt
