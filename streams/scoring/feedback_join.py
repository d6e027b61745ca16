"""Trajectories meet their feedback: when a trajectory is scored, and with which feedback. One partition of both topics.

    trajectory ──▶ waits until log time is past its end + window ──▶ revision 0, with the feedback given by then
    feedback ──before the trajectory──▶ kept
             ──later──▶ revision n + 1, with all feedback so far
             ──twice──▶ nothing

The window begins when the trajectory ended by the broker's clock (the timestamp of its record), and feedback is stamped
by the same: an agent's clock has no say. Whether feedback was in time follows from its timestamp and not from when it
is noticed, so however the two topics interleave, and whatever is delivered twice, the same rewards come out. The join
holds where a trajectory stands, never its tokens. What falls due is scored outside and handed back with
:meth:`Join.decided`; the shell writes rewards and state in one transaction.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headrace.schemas.records.reward import Reward
from headrace.streams.raw import Outgoing
from headrace.streams.rewards.spec import Feedback, Verdict
from headrace.streams.scoring.attempt import Attempt, memory_of

WINDOW_OVERFLOW = "window_overflow"
"""Why there is no total where too many trajectories waited for feedback, and this one could not."""


SURPLUS = "feedback_surplus"
"""Counted: feedback beyond ``max_feedback`` of its trajectory."""
TOO_LATE = "feedback_too_late"
"""Counted: feedback later than ``remember_ms`` after the window."""
UNCLAIMED = "feedback_unclaimed"
"""Counted: feedback that was forgotten before a trajectory came for it."""
FORGOTTEN_EARLY = "forgotten_early"
"""Counted: memories that had to go for ``max_remembered``, ``max_unclaimed`` or ``max_bytes``."""
TRAJECTORY_GONE = "trajectory_gone"
"""Why there is no total where the trajectory is past its topic's retention when its window ends. Counted, and so are
revisions that are not made for it."""


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """How long and how many, in each partition."""

    remember_ms: int = 24 * 3600 * 1000
    """Log time after the window for which feedback makes revisions; as long is feedback kept that came first."""
    max_open: int = 50_000
    """Trajectories that wait for feedback; beyond it the next to fall due has no total (``window_overflow``)."""
    max_remembered: int = 200_000
    """Scored trajectories that are remembered; the oldest is forgotten."""
    max_unclaimed: int = 50_000
    """Trajectories of which only feedback is known; the oldest is forgotten. Anybody can name them, so they have a
    bound of their own and never take the place of what was scored."""
    max_bytes: int = 512 * 1024 * 1024
    """Memory of everything that is known, about. Beyond it what is unclaimed is forgotten, then the oldest of what was
    scored; and a trajectory with more than its share of it takes no more feedback."""
    max_feedback: int = 64
    """Feedback that counts for one trajectory; further ones stay in their topic and out of its reward."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trajectory as it comes in."""

    trajectory_id: str
    """The trajectory."""
    offset: int
    """Where it stands in ``trajectories``."""
    arrived_ms: int
    """Timestamp of its record: when its last event came, by the clock that also stamps feedback."""
    window_ms: int = 0
    """How long its reward waits for feedback from then on."""
    takes_feedback: bool = True
    """Whether its spec makes revisions."""
    origin: str | None = None
    """``traceparent`` of its record."""
    blank: Reward | None = None
    """Its reward where it can no longer be read when its window ends."""


@dataclass(frozen=True, slots=True)
class Due:
    """A reward that is to be made."""

    trajectory_id: str
    """The trajectory."""
    offset: int
    """Where it stands in ``trajectories``."""
    revision: int
    """0 for the first."""
    feedback: tuple[Feedback, ...]
    """What it rests on."""
    time_ms: int
    """Log time of the decision."""
    unscored: str | None = None
    """Why it has no total whatever the spec says."""
    blank: Reward | None = None
    """The reward where the trajectory can no longer be read; revisions have none."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A reward that was made."""

    reward: Reward
    """The reward."""
    time_ms: int
    """Log time of the decision: the timestamp of its record."""
    origin: str | None
    """``traceparent`` of the trajectory's record."""


@dataclass(slots=True)
class Changes:
    """What some records, or some time, did. Every ``due`` must be decided before they are written."""

    due: list[Due] = field(default_factory=list)
    """Rewards to be made, in order."""
    decided: list[Decided] = field(default_factory=list)
    """Rewards that were made of them."""
    alerts: list[Outgoing] = field(default_factory=list)
    """What a person should know of them."""
    stored: dict[str, Attempt | None] = field(default_factory=dict)
    """Trajectory id → what to keep; ``None`` forgets it."""


class Join:
    """The join of one partition. Mutable, but a function of what was fed in."""

    def __init__(self, limits: JoinLimits, stored: Mapping[str, Attempt] | None = None) -> None:
        """Start empty or from what was ``stored``, by trajectory id."""
        self.limits = limits
        self.counts: Counter[str] = Counter()
        """What reached a limit, by name."""
        self._attempts = dict(stored or {})
        self._index()

    def __len__(self) -> int:
        """Trajectories of which anything is known."""
        return len(self._attempts)

    @property
    def open(self) -> int:
        """Trajectories that wait for their window to end."""
        return self._open

    @property
    def held_bytes(self) -> int:
        """Memory of everything that is known, about."""
        return self._bytes

    @property
    def newest_ms(self) -> int:
        """Newest log time that what is known bears witness of; 0 where there is nothing."""
        known = self._attempts.values()
        return max((max([one.arrived_ms, *(each.time_ms for each in one.heard)]) for one in known), default=0)

    @contextmanager
    def undone_if_it_raises(self, name: str, changes: Changes) -> Iterator[None]:
        """Around what is done with one record about ``name``: where that raises, nothing is known of the record."""
        before, dues = self._attempts.get(name), len(changes.due)
        was_stored, stored = name in changes.stored, changes.stored.get(name)
        try:
            yield
        except Exception:
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
        """Find out what falls due when, and what is remembered since when."""
        known = self._attempts.items()
        self._due = [(one.since_ms, name) for name, one in known if one.is_open]
        self._unclaimed = [(one.since_ms, name) for name, one in known if one.offset is None]
        self._memory = [(one.since_ms, name) for name, one in known if one.revisions]
        self._open, self._claims = len(self._due), len(self._unclaimed)
        self._bytes = sum(memory_of(name, one) for name, one in known)
        for heap in (self._due, self._unclaimed, self._memory):
            heapify(heap)

    def add_trajectory(self, arrival: Arrival, changes: Changes) -> None:
        """A trajectory came; it falls due at once where its spec has no window."""
        name = arrival.trajectory_id
        before = self._attempts.get(name)
        if before is not None and before.offset is not None:
            return
        after = Attempt(
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

    def add_feedback(self, trajectory_id: str, feedback: Feedback, changes: Changes) -> None:
        """Feedback came, before the trajectory or after it."""
        before = self._attempts.get(trajectory_id)
        if before is None:
            self._keep(trajectory_id, Attempt(since_ms=feedback.time_ms, heard=[feedback]), changes)
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
        """Whether :meth:`pass_time` may find anything."""
        return bool(self._due and self._due[0][0] < now_ms) or any(
            heap and heap[0][0] + self.limits.remember_ms < now_ms for heap in (self._unclaimed, self._memory)
        )

    def pass_time(self, now_ms: int, changes: Changes, *, at_most: int | None = None) -> None:
        """Log time is ``now_ms``: windows that ended before are closed, ``at_most`` so many, and memories forgotten."""
        while self._due and self._due[0][0] < now_ms and (at_most is None or len(changes.due) < at_most):
            self._close(self._next_due(), changes)
        for heap in (self._unclaimed, self._memory):
            while heap and heap[0][0] + self.limits.remember_ms < now_ms and self._forget_oldest(heap, changes):
                pass

    def verdicts(self, trajectory_id: str) -> Mapping[str, Verdict]:
        """What judges said of it so far, by term."""
        return self._attempts[trajectory_id].verdicts

    def decided(self, due: Due, reward: Reward, verdicts: Mapping[str, Verdict], changes: Changes) -> None:
        """``due`` was scored; of the judges, ``verdicts`` are new."""
        attempt = self._attempts[due.trajectory_id]
        changes.decided.append(Decided(reward, due.time_ms, attempt.origin))
        if verdicts:
            kept = attempt.model_copy(update={"verdicts": attempt.verdicts | dict(verdicts)})
            self._keep(due.trajectory_id, kept, changes)

    def _close(self, name: str, changes: Changes, *, unscored: str | None = None, now_ms: int | None = None) -> None:
        """The window of ``name`` is over: revision 0, and a revision for each feedback that is too late for it.

        With ``now_ms`` it is over early, at that log time.
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

    def _revise(self, name: str, feedback: Feedback, changes: Changes) -> None:
        """Feedback on what is scored: a revision, where the spec makes any and still remembers."""
        attempt = self._attempts[name]
        if not attempt.takes_feedback:
            return
        if feedback.time_ms > attempt.since_ms + self.limits.remember_ms:
            self.counts[TOO_LATE] += 1
            return
        heard = [*attempt.heard, feedback]
        self._make(name, attempt.model_copy(update={"heard": heard}), feedback.time_ms, changes)

    def _make(self, name: str, attempt: Attempt, time_ms: int, changes: Changes, unscored: str | None = None) -> None:
        """The next reward of ``attempt`` falls due."""
        assert attempt.offset is not None, f"{name} is not known"
        due = Due(
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

    def _takes_too_much(self, name: str, attempt: Attempt) -> bool:
        """Whether everything together is at its bound, and ``attempt`` beyond its share of it."""
        limits = self.limits
        return self._bytes > limits.max_bytes and memory_of(name, attempt) > limits.max_bytes // limits.max_open

    def _remember(self, name: str, changes: Changes) -> None:
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

    def _forget_oldest(self, heap: list[tuple[int, str]], changes: Changes, *, early: bool = False) -> bool:
        """Whether the oldest in ``heap`` could go. What has just changed cannot: it is written first."""
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
        # Else it stands elsewhere: its trajectory came after its feedback.
        heappop(heap)
        return True

    def _keep(self, name: str, attempt: Attempt, changes: Changes) -> None:
        before = self._attempts.get(name)
        self._bytes += memory_of(name, attempt) - (memory_of(name, before) if before else 0)
        self._attempts[name] = attempt
        changes.stored[name] = attempt
