"""All groups of one partition of ``rewards``, and the log time that expires them.

Log time is the :class:`Watermark` of the partition. Before a reward is folded, everything that was due by then expires,
so that a replay of the partition decides what the first run decided. On an idle partition nothing moves log time; the
shell then calls :meth:`Groups.expire_due` with time as it would be.

A decision is handed out with the state that it left behind: the shell makes both durable in one record before it
announces the decision, and so a crash in between can repeat an announcement but never change a decision.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headrace.schemas.model import Part
from headrace.schemas.records import Rejection, Reward, TrainingGroup
from headrace.streams.group import GroupState, Outputs, expire, group
from headrace.streams.watermark import Watermark


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How long and how many."""

    timeout_ms: int = 600_000
    """Log time from a group's first member until it is given up as incomplete."""
    remember_ms: int = 24 * 3600 * 1000
    """Log time for which a closed group is remembered; a latecomer after that opens a new group, which expires."""
    max_open: int = 50_000
    """Open groups of a partition; beyond it the next to fall due is given up as incomplete, before its time."""
    max_remembered: int = 200_000
    """Closed groups remembered a partition; beyond it the oldest is forgotten before its time."""


class StoredGroup(Part):
    """The table's value: a group's state and, until they are announced, the outputs of its closing."""

    state: GroupState
    """The state."""
    training: TrainingGroup | None = None
    """Decided and perhaps not yet announced."""
    rejected: list[Rejection] = []
    """Decided and perhaps not yet announced."""

    @property
    def outputs(self) -> Outputs:
        """What is still to be announced."""
        return [*([self.training] if self.training else []), *self.rejected]

    def announced(self) -> "StoredGroup":
        """What is kept once the outputs are in the log."""
        return StoredGroup(state=self.state)


@dataclass(slots=True)
class Changes:
    """What some rewards, or some time, did."""

    stored: dict[str, StoredGroup | None] = field(default_factory=dict)
    """Group id → what to keep; ``None`` forgets it."""
    at_once: list[tuple[Rejection, int]] = field(default_factory=list)
    """Rewards turned away without a trace in any group, with the log time. They follow from reward and state alone."""


class Groups:
    """Folds the rewards of one partition. Mutable, but a function of what was fed in."""

    def __init__(self, limits: GroupLimits, stored: dict[str, StoredGroup] | None = None, *, sources: int = 1) -> None:
        """Start empty or from what was ``stored`` (by group id). ``sources``: partitions of ``trajectories``."""
        self.limits = limits
        self.time = Watermark(sources)
        states = sorted((entry.state for entry in (stored or {}).values()), key=_since)
        self._open = {state.group_id: state for state in states if state.closed is None}
        self._closed = {state.group_id: state for state in states if state.closed is not None}
        # Members of one group come from several sources, so groups do not open in the order in which they fall due.
        self._due = [self._deadline(state) for state in self._open.values()]
        heapify(self._due)

    @property
    def open(self) -> int:
        """Groups that wait for members."""
        return len(self._open)

    @property
    def newest_ms(self) -> int:
        """Newest timestamp seen or restored; 0 where there is none."""
        states = (*self._open.values(), *self._closed.values())
        return self.time.newest_ms or max(map(_since, states), default=0)

    def add(self, reward: Reward, timestamp_ms: int, changes: Changes) -> None:
        """Fold ``reward``, whose record bears ``timestamp_ms``; what it did is added to ``changes``."""
        self.time.see(reward.trajectory.partition, timestamp_ms)
        if self.time.passed_ms is not None:
            self.expire_due(self.time.passed_ms, changes)
        group_id = reward.group_id or ""
        before = self._open.get(group_id) or self._closed.get(group_id)
        after, outputs = group(before, reward, now_ms=timestamp_ms)
        if after is before or after is None:
            changes.at_once += [(output, timestamp_ms) for output in outputs if isinstance(output, Rejection)]
            return
        if before is None:
            heappush(self._due, self._deadline(after))
        self._keep(after, outputs, changes)
        while len(self._open) > self.limits.max_open:
            self._give_up_next(changes)

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`expire_due` may find anything."""
        closed = next(iter(self._closed.values()), None)
        return bool(self._due and self._due[0][0] <= now_ms) or (
            closed is not None and _since(closed) + self.limits.remember_ms <= now_ms
        )

    def expire_due(self, now_ms: int, changes: Changes) -> None:
        """Give up the groups, and forget the memories, whose time is over at ``now_ms``."""
        while self._due and self._due[0][0] <= now_ms:
            self._give_up_next(changes)
        while self._closed:
            oldest = next(iter(self._closed.values()))
            due = _since(oldest) + self.limits.remember_ms <= now_ms or len(self._closed) > self.limits.max_remembered
            # A decision that is not announced yet must not be forgotten: it goes with the next changes.
            if not due or oldest.group_id in changes.stored:
                break
            del self._closed[oldest.group_id]
            changes.stored[oldest.group_id] = None

    def _give_up_next(self, changes: Changes) -> None:
        deadline, group_id = heappop(self._due)
        state = self._open.get(group_id)
        # Completed meanwhile, and perhaps opened anew: what stands in the heap is then of an earlier group of this id.
        if state is not None and self._deadline(state) == (deadline, group_id):
            after, rejections = expire(state, deadline, self.limits.timeout_ms)
            self._keep(after, [*rejections], changes)

    def _deadline(self, state: GroupState) -> tuple[int, str]:
        return state.opened_ms + self.limits.timeout_ms, state.group_id

    def _keep(self, state: GroupState, outputs: Outputs, changes: Changes) -> None:
        if state.closed is None:
            self._open[state.group_id] = state
        else:
            self._open.pop(state.group_id, None)
            self._closed[state.group_id] = state
        changes.stored[state.group_id] = StoredGroup(
            state=state,
            training=next((output for output in outputs if isinstance(output, TrainingGroup)), None),
            rejected=[output for output in outputs if isinstance(output, Rejection)],
        )


def _since(state: GroupState) -> int:
    return state.opened_ms if state.closed_ms is None else state.closed_ms
