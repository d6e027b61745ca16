"""All groups of one partition of ``rewards``, and the stream time that closes them.

Stream time is the :class:`Watermark` of the partition. Before a reward is folded, every group due by then is closed, so
that a replay of the partition makes the same decisions. On an idle partition no record advances stream time; the I/O
layer then calls :meth:`Groups.expire_due` with the stream time that it has determined.

The effects of rewards are :class:`GroupChanges`: decisions, and state to store. The I/O layer makes both durable in one
transaction with the offset of the rewards. A process that starts from the stored state resumes with identical results.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from headrace.schemas.events import Purpose, Role
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.rollouts import RolloutCounts
from headrace.streams.grouping.baselines import Baseline, RunningMean
from headrace.streams.grouping.continuations import PARENT, Family, ForkedPrefix
from headrace.streams.grouping.families import Families, family_of
from headrace.streams.grouping.group import alone, as_member, cohort_of, expire, group, settled, with_totals
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
    cohort,
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
"""Most stale deadlines in the heap, of groups that are already closed, in addition to the number of open groups."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of time and memory."""

    timeout_ms: int = 600_000
    """Timeout from a group's first member in stream time, if its policy has none."""
    remember_ms: int = 24 * 3600 * 1000
    """Stream time for which a closed group is remembered; a later reward opens a new group, which expires."""
    max_open: int = 50_000
    """Most open groups per partition; beyond it the next one due is closed early."""
    max_remembered: int = 200_000
    """Most closed groups remembered per partition; beyond it the oldest is dropped early."""
    max_members: int = 500_000
    """Most members of all open groups per partition; beyond it the next group due is closed early."""
    max_remembered_members: int = 4_000_000
    """Most members of all remembered closed groups per partition; beyond it the oldest group is dropped early."""
    max_cohorts: int = 10_000
    """Most running means per partition; beyond it the least recently used is dropped, and its cohort warms up again."""
    max_continued: int = 500_000
    """Most rewards of continuations per partition that are kept for parents; beyond it those of the parents heard of
    longest ago are dropped, and do not count for their parent's reward."""
    max_runs: int = 10_000
    """Most runs per partition with rollouts that no training record has reported yet; beyond it the counts of the least
    recently updated run are dropped and missing from its metrics."""

    @property
    def step_ms(self) -> int:
        """The most that one gap in stream time counts for a timeout: a tenth of it, but at least 5 s."""
        return min(self.timeout_ms, max(self.timeout_ms // 10, 5000))


class GroupDecision(NamedTuple):
    """A decision."""

    record: TrainingGroup | Rejection
    """The output record."""
    time_ms: int
    """Stream time of the decision, Unix milliseconds."""
    origin: str | None
    """Trace that it continues: of its reward or, for a group, of the first member that has one."""
    rollouts: RolloutCounts | None = None
    """For a group: all rollouts of its run that were decided since the run's previous group, including its own."""


@dataclass(slots=True)
class GroupChanges:
    """Effects of rewards and of time on the groups."""

    outputs: list[GroupDecision] = field(default_factory=list)
    """Decisions, in order."""
    stored: dict[Key, Entry | None] = field(default_factory=dict)
    """State to store by key; ``None`` deletes it."""
    ignored: int = 0
    """Rewards without effect: duplicates, or revisions after the decision."""
    _fresh: set[Key] = field(default_factory=set)

    def decide(
        self,
        outputs: Outputs,
        time_ms: int,
        candidates: Mapping[str, Candidate],
        rollouts: RolloutCounts | None = None,
    ) -> None:
        """Add ``outputs``, decided at ``time_ms``. ``candidates`` has the reward of each trajectory; a training group
        carries ``rollouts``.
        """
        for output in outputs:
            if isinstance(output, TrainingGroup):
                traces = (candidates[member.trajectory_id].traceparent for member in output.members)
                origin = next(filter(None, traces), None)
            else:
                origin = candidates[output.trajectory_id].traceparent
            carried = rollouts if isinstance(output, TrainingGroup) else None
            self.outputs.append(GroupDecision(output, time_ms, origin, carried))

    def keep(self, key: Key, entry: Entry, *, fresh: bool = False) -> None:
        """Store ``entry``. ``fresh``: ``key`` is not stored yet."""
        if fresh and key not in self.stored:
            self._fresh.add(key)
        # Moves to the end: a restart reads groups in the order in which they closed, and means in the order of use.
        self.stored.pop(key, None)
        self.stored[key] = entry

    def forget(self, key: Key) -> None:
        """Delete ``key``. A key that was only added by these changes is removed without a tombstone."""
        if key in self._fresh:
            self._fresh.discard(key)
            del self.stored[key]
        else:
            self.stored[key] = None


class Groups:
    """Folds the rewards of one partition. Mutable; its state depends only on its inputs."""

    def __init__(
        self,
        limits: GroupLimits,
        stored: Iterable[Entry] = (),
        *,
        policies: GroupPolicies = DEFAULT_POLICIES,
        sources: int = 1,
        step_ms: int | None = None,
    ) -> None:
        """Start empty, or from the ``stored`` entries in order. ``sources``: number of partitions of ``trajectories``.

        ``step_ms``: the most that a gap in stream time counts for timeouts; by default all of it.
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
        # The group in which each single attempt was decided: a cohort key, unlike a group id, does not identify it.
        self._group_of_decided: dict[str, str] = {}
        for state in self._closed.values():
            self._index_decided(state)
        self._running = {entry.cohort: entry for entry in stored if isinstance(entry, RunningMean)}
        self._families = Families(stored, self._open.values(), most=limits.max_continued)
        self._rollouts = {entry.run: entry for entry in stored if isinstance(entry, Rollouts)}
        # Members of one group come from several sources, so groups do not open in the order of their deadlines.
        self._due = [self._deadline(state) for state in self._open.values()]
        heapify(self._due)
        self._members = sum(len(state.members) for state in self._open.values())
        self._remembered_members = sum(len(state.closed or ()) for state in self._closed.values())

    @property
    def open(self) -> int:
        """Number of groups that wait for members."""
        return len(self._open)

    def add(self, reward: Reward, timestamp_ms: int, changes: GroupChanges, traceparent: str | None = None) -> None:
        """Fold ``reward`` and add its effects to ``changes``.

        Its record has the timestamp ``timestamp_ms`` (Unix milliseconds) and the trace ``traceparent``.
        """
        self.time.see(reward.trajectory.partition, timestamp_ms)
        changes.keep(CLOCK, self.time)
        if self.time.passed_ms is not None:
            self.pass_time(self.time.passed_ms, changes)
        policy = self.policies.of(reward.spec)
        cohort = cohort_of(reward, policy)
        if cohort and remembered(reward.trajectory_id) in self._group_of_decided:
            changes.ignored += 1
        elif cohort and policy.baseline is Baseline.RUNNING:
            self._decide_alone(cohort, reward, policy, timestamp_ms, changes, traceparent)
        else:
            group_id = (self._collecting.get(cohort) if cohort else reward.group_id) or ""
            self._collect(group_id, reward, policy, timestamp_ms, changes, traceparent)
        if policy.forked_prefix is ForkedPrefix.ONCE:
            self._follow_family(reward, timestamp_ms, changes)
        while len(self._open) > self.limits.max_open or self._members > self.limits.max_members:
            self._close_next(changes)

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`expire_due` may have work to do."""
        closed = next(iter(self._closed.values()), None)
        oldest = [closed.since_ms if closed else None, self._families.oldest_ms]
        return bool(self._due and self._due[0][0] <= now_ms - self.time.skipped_ms) or any(
            since_ms is not None and since_ms + self.limits.remember_ms <= now_ms for since_ms in oldest
        )

    def pass_time(self, now_ms: int, changes: GroupChanges) -> None:
        """Advance stream time to ``now_ms``, then :meth:`expire_due`. Of the gap, at most ``step_ms`` counts."""
        self.time.reach(now_ms, self._step_ms)
        self.expire_due(now_ms, changes)

    def expire_due(self, now_ms: int, changes: GroupChanges) -> None:
        """Close the groups that have timed out at ``now_ms``, and drop closed groups that have expired."""
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
                if self._group_of_decided.get(trajectory_id) == oldest.group_id:
                    del self._group_of_decided[trajectory_id]
        self._families.forget_until(now_ms - self.limits.remember_ms, changes)

    def _follow_family(self, reward: Reward, now_ms: int, changes: GroupChanges) -> None:
        """Note the reward of a continuation for its parent; settle a parent whose continuations are all scored."""
        if reward.purpose is Purpose.EVALUATE or reward.role is Role.FROZEN:
            return
        if reward.continuations:
            family = cohort(reward.run, reward.spec, reward.trajectory_id, reward.tenant)
        elif reward.parent_trajectory_id is not None:
            family = cohort(reward.run, reward.spec, reward.parent_trajectory_id, reward.tenant)
            self._families.hear(family, reward.trajectory_id, reward.revision, reward.total, now_ms, changes)
        else:
            return
        self._settle_if_heard(family, now_ms, changes)

    def _settle_if_heard(self, family: Family, now_ms: int, changes: GroupChanges) -> None:
        """Give a waiting parent its total once all of its continuations have a reward."""
        group_id, name = self._families.waiting_in(family), family[PARENT]
        if group_id is None:
            return
        before = self._open[group_id]
        if self._families.count(family) < before.members[name].continuations:
            return
        totals = {name: self._families.settle(family, changes)}
        after, outputs = settled(before, totals, self.policies.of(before.spec), now_ms)
        if after.closed is None:
            self._keep_open(before, after, name, changes)
        else:
            self._decide(outputs, after.closed_ms or now_ms, with_totals(before, totals).members, changes)
            self._keep_closed(before, after, changes)
        self._pass_on(before, totals, now_ms, changes)

    def _pass_on(
        self, state: GroupState, totals: Mapping[str, float | None], now_ms: int, changes: GroupChanges
    ) -> None:
        """Note the totals of settled parents that are themselves continuations for their own parents."""
        for name, total in totals.items():
            member = state.members[name]
            if member.parent is not None:
                family = cohort(state.run, member.spec, member.parent, state.tenant)
                self._families.hear(family, name, member.revision, total, now_ms, changes)
                self._settle_if_heard(family, now_ms, changes)

    def _collect(
        self,
        group_id: str,
        reward: Reward,
        policy: GroupPolicy,
        timestamp_ms: int,
        changes: GroupChanges,
        traceparent: str | None,
    ) -> None:
        before = self._open.get(group_id) or self._closed.get(group_id)
        if before is not None:  # the spec of the first member sets the policy, not that of the latest
            policy = self.policies.of(before.spec)
        after, outputs = group(before, reward, now_ms=timestamp_ms, policy=policy, traceparent=traceparent)
        candidates: Mapping[str, Candidate] = {}
        if outputs:
            member = as_member(candidate_of(reward, traceparent), policy)
            candidates = (before.members if before else {}) | {reward.trajectory_id: member}
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
        changes: GroupChanges,
        traceparent: str | None,
    ) -> None:
        before = self._running.get(cohort) or RunningMean(cohort)
        after, state, outputs = alone(before, reward, policy, now_ms=timestamp_ms)
        self._decide(outputs, timestamp_ms, {reward.trajectory_id: candidate_of(reward, traceparent)}, changes)
        changes.ignored += not outputs
        if state is not None:
            self._keep_closed(None, state, changes)
        if after is not before:
            # Moves to the end: the order is the order of use.
            self._running.pop(cohort, None)
            self._running[cohort] = after
            changes.keep(running_key(cohort), after)
        while len(self._running) > self.limits.max_cohorts:
            unused = next(iter(self._running))
            del self._running[unused]
            changes.forget(running_key(unused))

    def _decide(
        self, outputs: Outputs, time_ms: int, candidates: Mapping[str, Candidate], changes: GroupChanges
    ) -> None:
        """Add one decision to ``changes`` and count its rollouts; a training record carries the counts of its run."""
        if not outputs:
            return
        first, run = outputs[0], outputs[0].run
        counts, before = rollouts_of(outputs, candidates), self._rollouts.get(run)
        after = before.counts.plus(counts) if before else counts
        reported = isinstance(first, TrainingGroup)
        changes.decide(outputs, time_ms, candidates, after if reported else None)
        if before and (reported or counts.scored):
            del self._rollouts[run]
        if before and reported:
            changes.forget(rollouts_key(run))
        elif counts.scored and not reported:
            # Moves to the end: the order is the order of use.
            self._rollouts[run] = Rollouts.of(run, after)
            changes.keep(rollouts_key(run), self._rollouts[run], fresh=before is None)
        while len(self._rollouts) > self.limits.max_runs:
            unused = next(iter(self._rollouts))
            del self._rollouts[unused]
            changes.forget(rollouts_key(unused))

    def _close_next(self, changes: GroupChanges) -> None:
        due = heappop(self._due)
        state = self._open.get(due[1])
        # Otherwise the heap entry is stale: the group was completed, and a new one of this id may have been opened.
        if state is not None and self._deadline(state) == due:
            deadline = due[0] + state.skipped_ms
            totals = self._families.totals_of(state)
            complete = with_totals(state, totals)
            after, outputs = expire(complete, deadline, self.limits.timeout_ms, self.policies.of(state.spec))
            self._decide(outputs, deadline, complete.members, changes)
            self._keep_closed(state, after, changes)
            self._pass_on(state, totals, deadline, changes)

    def _deadline(self, state: GroupState) -> tuple[int, str]:
        """Returns its deadline, in stream time without skipped time, and its id."""
        timeout_ms = self.policies.of(state.spec).timeout_ms(self.limits.timeout_ms)
        return state.opened_ms + timeout_ms - state.skipped_ms, state.group_id

    def _keep_open(
        self, before: GroupState | None, after: GroupState, trajectory_id: str, changes: GroupChanges
    ) -> None:
        """Store an open group and its new or revised member."""
        if before is None:
            after = msgspec.structs.replace(after, skipped_ms=self.time.skipped_ms)
            heappush(self._due, self._deadline(after))
            if len(self._due) > 2 * len(self._open) + _STALE:  # too many of them are stale
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
        self._families.index(after, after.members[trajectory_id])
        self._open[after.group_id] = after
        if after.cohort is not None:
            self._collecting[after.cohort] = after.group_id

    def _keep_closed(self, before: GroupState | None, after: GroupState, changes: GroupChanges) -> None:
        """Replace a group and its members by its closed state."""
        for trajectory_id, member in before.members.items() if before else ():
            changes.forget(member_key(after.group_id, trajectory_id))
            if member.waits and before is not None:
                self._families.settle(family_of(before, member), changes)
        changes.keep(group_key(after.group_id), after, fresh=before is None)
        self._members -= len(before.members) if before else 0
        self._remembered_members += len(after.closed or ())
        self._open.pop(after.group_id, None)
        self._closed[after.group_id] = after
        self._index_decided(after)

    def _index_decided(self, state: GroupState) -> None:
        if state.cohort is not None:
            self._group_of_decided |= dict.fromkeys(state.closed or (), state.group_id)
            if self._collecting.get(state.cohort) == state.group_id:
                del self._collecting[state.cohort]
