"""All groups of one partition of ``rewards``, and the log time that closes them.

Log time is the :class:`Watermark` of the partition. Before a reward is folded, everything that was due by then is
closed, so that a replay of the partition decides what the first run decided. On an idle partition nothing moves log
time; the shell then calls :meth:`Groups.expire_due` with time as it would be.

What rewards did comes out as :class:`Changes`: decisions, and what is to be stored. The shell makes both durable in one
transaction with the offset of the rewards. Whoever starts from what is stored goes on as if nothing had happened.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.rollouts import RolloutCounts
from headrace.streams.grouping.baselines import Baseline, RunningMean
from headrace.streams.grouping.group import alone, cohort_of, expire, group
from headrace.streams.grouping.group_decision import Outputs
from headrace.streams.grouping.group_policy import DEFAULT_POLICIES, GroupPolicies, GroupPolicy
from headrace.streams.grouping.group_state import (
    CLOCK,
    Candidate,
    Cohort,
    Entry,
    GroupState,
    Key,
    Rollouts,
    StoredMember,
    candidate_of,
    group_key,
    groups_of,
    member_key,
    remembered,
    rollouts_key,
    running_key,
)
from headrace.streams.grouping.rollouts import rollouts_of
from headrace.streams.grouping.watermark import Watermark

_STALE = 1_000
"""Deadlines of groups that are closed already which may wait for their time beside as many as groups are open."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How long and how many."""

    timeout_ms: int = 600_000
    """Log time from a group's first member until its time is over, where its policy says none."""
    remember_ms: int = 24 * 3600 * 1000
    """Log time for which a closed group is remembered; a latecomer after that opens a new group, which expires."""
    max_open: int = 50_000
    """Open groups of a partition; beyond it the next to fall due is closed before its time."""
    max_remembered: int = 200_000
    """Closed groups remembered a partition; beyond it the oldest is forgotten before its time."""
    max_members: int = 500_000
    """Members of all open groups of a partition; beyond it the next to fall due is closed before its time."""
    max_remembered_members: int = 4_000_000
    """Members of all closed groups remembered a partition; beyond it the oldest group is forgotten before its time."""
    max_cohorts: int = 10_000
    """Running means a partition; beyond it the one unused for longest is forgotten, and warms up anew."""
    max_runs: int = 10_000
    """Runs a partition with rollouts that no training record has told of yet; beyond it those of the run that had none
    for longest are forgotten, and missing in its metrics."""

    @property
    def step_ms(self) -> int:
        """The most that one gap in log time counts for a timeout: a tenth of it, and 5 s are never too much."""
        return min(self.timeout_ms, max(self.timeout_ms // 10, 5000))


class Decided(NamedTuple):
    """A decision."""

    record: TrainingGroup | Rejection
    """What was decided."""
    time_ms: int
    """Log time of the decision, Unix milliseconds."""
    origin: str | None
    """Trace that it continues: of its reward or, for a group, of the first member that has one."""
    rollouts: RolloutCounts | None = None
    """For a group: all rollouts of its run that were decided since the run's group before it, with its own."""


@dataclass(slots=True)
class Changes:
    """What some rewards, or some time, did."""

    outputs: list[Decided] = field(default_factory=list)
    """Decisions, in order."""
    stored: dict[Key, Entry | None] = field(default_factory=dict)
    """What to store by key; ``None`` forgets it."""
    ignored: int = 0
    """Rewards that changed nothing: repeated, or revisions of what had its fate."""
    _fresh: set[Key] = field(default_factory=set)

    def decide(
        self,
        outputs: Outputs,
        time_ms: int,
        candidates: Mapping[str, Candidate],
        rollouts: RolloutCounts | None = None,
    ) -> None:
        """Add ``outputs``, decided at ``time_ms``; ``candidates`` has what there is of each trajectory's reward, and a
        training group tells of ``rollouts``.
        """
        for output in outputs:
            if isinstance(output, TrainingGroup):
                traces = (candidates[member.trajectory_id].traceparent for member in output.members)
                origin = next(filter(None, traces), None)
            else:
                origin = candidates[output.trajectory_id].traceparent
            told = rollouts if isinstance(output, TrainingGroup) else None
            self.outputs.append(Decided(output, time_ms, origin, told))

    def keep(self, key: Key, entry: Entry, *, fresh: bool = False) -> None:
        """Store ``entry``. ``fresh``: nothing is stored under ``key`` yet."""
        if fresh and key not in self.stored:
            self._fresh.add(key)
        # Last in the order: a restart finds groups in the order in which they were closed, means in that of their use.
        self.stored.pop(key, None)
        self.stored[key] = entry

    def forget(self, key: Key) -> None:
        """Store nothing any more under ``key``. What never left these changes leaves no trace."""
        if key in self._fresh:
            self._fresh.discard(key)
            del self.stored[key]
        else:
            self.stored[key] = None


class Groups:
    """Folds the rewards of one partition. Mutable, but a function of what was fed in."""

    def __init__(
        self,
        limits: GroupLimits,
        stored: Iterable[Entry] = (),
        *,
        policies: GroupPolicies = DEFAULT_POLICIES,
        sources: int = 1,
        step_ms: int | None = None,
    ) -> None:
        """Start empty or from what was ``stored``, in its order. ``sources``: partitions of ``trajectories``.

        ``step_ms``: how much of a gap in log time counts for timeouts, at most; by default all of it.
        """
        self.limits = limits
        self._step_ms = step_ms
        self.policies = policies
        stored = list(stored)
        clocks = [entry for entry in stored if isinstance(entry, Watermark)]
        self.time = msgspec.structs.replace(clocks[0], sources=sources) if clocks else Watermark(sources)
        states = groups_of(stored)
        self._open = {state.group_id: state for state in states if state.closed is None}
        self._closed = {state.group_id: state for state in states if state.closed is not None}
        self._collecting = {state.cohort: state.group_id for state in self._open.values() if state.cohort}
        # In which group a single attempt had its fate: unlike a group id, a cohort key does not tell.
        self._settled: dict[str, str] = {}
        for state in self._closed.values():
            self._settle(state)
        self._running = {entry.cohort: entry for entry in stored if isinstance(entry, RunningMean)}
        self._rollouts = {entry.run: entry for entry in stored if isinstance(entry, Rollouts)}
        # Members of one group come from several sources, so groups do not open in the order in which they fall due.
        self._due = [self._deadline(state) for state in self._open.values()]
        heapify(self._due)
        self._members = sum(len(state.members) for state in self._open.values())
        self._remembered_members = sum(len(state.closed or ()) for state in self._closed.values())

    @property
    def open(self) -> int:
        """Groups that wait for members."""
        return len(self._open)

    def add(self, reward: Reward, timestamp_ms: int, changes: Changes, traceparent: str | None = None) -> None:
        """Fold ``reward``; what it did is added to ``changes``.

        Its record bears ``timestamp_ms`` (Unix milliseconds) and ``traceparent``.
        """
        self.time.see(reward.trajectory.partition, timestamp_ms)
        changes.keep(CLOCK, self.time)
        if self.time.passed_ms is not None:
            self.pass_time(self.time.passed_ms, changes)
        policy = self.policies.of(reward.spec)
        cohort = cohort_of(reward, policy)
        if cohort and remembered(reward.trajectory_id) in self._settled:
            changes.ignored += 1
        elif cohort and policy.baseline is Baseline.RUNNING:
            self._decide_alone(cohort, reward, policy, timestamp_ms, changes, traceparent)
        else:
            group_id = (self._collecting.get(cohort) if cohort else reward.group_id) or ""
            self._collect(group_id, reward, policy, timestamp_ms, changes, traceparent)
        while len(self._open) > self.limits.max_open or self._members > self.limits.max_members:
            self._close_next(changes)

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`expire_due` may find anything."""
        closed = next(iter(self._closed.values()), None)
        return bool(self._due and self._due[0][0] <= now_ms - self.time.skipped_ms) or (
            closed is not None and closed.since_ms + self.limits.remember_ms <= now_ms
        )

    def pass_time(self, now_ms: int, changes: Changes) -> None:
        """Log time is ``now_ms``: as :meth:`expire_due`, but of a gap in time only so much counts as was said."""
        self.time.reach(now_ms, self._step_ms)
        self.expire_due(now_ms, changes)

    def expire_due(self, now_ms: int, changes: Changes) -> None:
        """Close the groups, and forget the memories, whose time is over at ``now_ms``."""
        while self._due and self._due[0][0] <= now_ms - self.time.skipped_ms:
            self._close_next(changes)
        while self._closed:
            oldest = next(iter(self._closed.values()))
            full = len(self._closed) > self.limits.max_remembered
            full = full or self._remembered_members > self.limits.max_remembered_members
            if oldest.since_ms + self.limits.remember_ms > now_ms and not full:
                break
            del self._closed[oldest.group_id]
            self._remembered_members -= len(oldest.closed or ())
            changes.forget(group_key(oldest.group_id))
            for trajectory_id in oldest.closed or ():
                if self._settled.get(trajectory_id) == oldest.group_id:
                    del self._settled[trajectory_id]

    def _collect(
        self,
        group_id: str,
        reward: Reward,
        policy: GroupPolicy,
        timestamp_ms: int,
        changes: Changes,
        traceparent: str | None,
    ) -> None:
        before = self._open.get(group_id) or self._closed.get(group_id)
        if before is not None:  # whoever comes last, and by whatever spec, decides nothing about the others
            policy = self.policies.of(before.spec)
        after, outputs = group(before, reward, now_ms=timestamp_ms, policy=policy, traceparent=traceparent)
        members = before.members if before else {}
        candidates = members | {reward.trajectory_id: candidate_of(reward, traceparent)} if outputs else {}
        if after is None or after is before:
            self._decide(outputs, timestamp_ms, candidates, changes)
            changes.ignored += not outputs
        elif after.closed is None:
            self._keep_open(before, after, reward.trajectory_id, changes)
        else:
            self._decide(outputs, after.closed_ms or timestamp_ms, candidates, changes)
            self._keep_closed(before, after, changes)

    def _decide_alone(
        self,
        cohort: Cohort,
        reward: Reward,
        policy: GroupPolicy,
        timestamp_ms: int,
        changes: Changes,
        traceparent: str | None,
    ) -> None:
        before = self._running.get(cohort) or RunningMean(cohort)
        after, state, outputs = alone(before, reward, policy, now_ms=timestamp_ms)
        self._decide(outputs, timestamp_ms, {reward.trajectory_id: candidate_of(reward, traceparent)}, changes)
        changes.ignored += not outputs
        if state is not None:
            self._keep_closed(None, state, changes)
        if after is not before:
            # Last in the order, which is the order of use.
            self._running.pop(cohort, None)
            self._running[cohort] = after
            changes.keep(running_key(cohort), after)
        while len(self._running) > self.limits.max_cohorts:
            unused = next(iter(self._running))
            del self._running[unused]
            changes.forget(running_key(unused))

    def _decide(self, outputs: Outputs, time_ms: int, candidates: Mapping[str, Candidate], changes: Changes) -> None:
        """Add one decision to ``changes``, and count it; a training record tells what its run has counted with it."""
        if not outputs:
            return
        first, run = outputs[0], outputs[0].run
        counts, before = rollouts_of(outputs, candidates), self._rollouts.get(run)
        after = before.counts.plus(counts) if before else counts
        told = isinstance(first, TrainingGroup)
        changes.decide(outputs, time_ms, candidates, after if told else None)
        if before and (told or counts.scored):
            del self._rollouts[run]
        if before and told:
            changes.forget(rollouts_key(run))
        elif counts.scored and not told:
            # Last in the order, which is the order of use.
            self._rollouts[run] = Rollouts.of(run, after)
            changes.keep(rollouts_key(run), self._rollouts[run], fresh=before is None)
        while len(self._rollouts) > self.limits.max_runs:
            unused = next(iter(self._rollouts))
            del self._rollouts[unused]
            changes.forget(rollouts_key(unused))

    def _close_next(self, changes: Changes) -> None:
        due = heappop(self._due)
        state = self._open.get(due[1])
        # Completed meanwhile, and perhaps opened anew: what stands in the heap is then of an earlier group of this id.
        if state is not None and self._deadline(state) == due:
            deadline = due[0] + state.skipped_ms
            after, outputs = expire(state, deadline, self.limits.timeout_ms, self.policies.of(state.spec))
            self._decide(outputs, deadline, state.members, changes)
            self._keep_closed(state, after, changes)

    def _deadline(self, state: GroupState) -> tuple[int, str]:
        """When its time is over, in log time without what did not count, and its id."""
        timeout_ms = self.policies.of(state.spec).timeout_ms(self.limits.timeout_ms)
        return state.opened_ms + timeout_ms - state.skipped_ms, state.group_id

    def _keep_open(self, before: GroupState | None, after: GroupState, trajectory_id: str, changes: Changes) -> None:
        """Store an open group and the member that it has anew."""
        if before is None:
            after = msgspec.structs.replace(after, skipped_ms=self.time.skipped_ms)
            heappush(self._due, self._deadline(after))
            if len(self._due) > 2 * len(self._open) + _STALE:  # of groups that were complete before their time
                self._due = [self._deadline(state) for state in (*self._open.values(), after)]
                heapify(self._due)
        if before is None or before.size != after.size:
            changes.keep(group_key(after.group_id), after, fresh=before is None)
        changes.keep(
            member_key(after.group_id, trajectory_id),
            StoredMember(after.group_id, after.members[trajectory_id]),
            fresh=before is None or trajectory_id not in before.members,
        )
        self._members += len(after.members) - (len(before.members) if before else 0)
        self._open[after.group_id] = after
        if after.cohort is not None:
            self._collecting[after.cohort] = after.group_id

    def _keep_closed(self, before: GroupState | None, after: GroupState, changes: Changes) -> None:
        """Store the memory of a group in the place of the group and its members."""
        for trajectory_id in before.members if before else ():
            changes.forget(member_key(after.group_id, trajectory_id))
        changes.keep(group_key(after.group_id), after, fresh=before is None)
        self._members -= len(before.members) if before else 0
        self._remembered_members += len(after.closed or ())
        self._open.pop(after.group_id, None)
        self._closed[after.group_id] = after
        self._settle(after)

    def _settle(self, state: GroupState) -> None:
        if state.cohort is not None:
            self._settled |= dict.fromkeys(state.closed or (), state.group_id)
            if self._collecting.get(state.cohort) == state.group_id:
                del self._collecting[state.cohort]
