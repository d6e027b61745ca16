"""Group: rewards of one prompt → a training group, or one rejection each. Every reward gets exactly one fate.

    reward ──evaluation, frozen, no group──▶ rejected at once
       └─▶ collected by group id, or by cohort ──size reached──▶ decided (``group_decision``)
                    │                                              ▲
                    └──time over──▶ all rejected as incomplete, or shrunk ┘

A fold without clock or I/O; :class:`GroupPolicy` says how. State is keyed by trajectory id and never counts, so a
reward that comes twice changes nothing; a closed group keeps its members' ids to know a duplicate from a latecomer. A
revision takes the place of the trajectory's reward while the group is open. After that it changes nothing: the
trajectory has had its fate.
"""

from dataclasses import replace

import msgspec

from headrace.schemas.events import Purpose, Role
from headrace.schemas.ids import derived_id
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.rollouts import RolloutCounts, rollouts_header
from headrace.schemas.topics import REJECTED, TRAINING, Topic
from headrace.schemas.wire import Message, record_message
from headrace.streams.grouping.baselines import RunningMean
from headrace.streams.grouping.group_decision import Outputs, fates, is_comparable, member_rejection, rejection
from headrace.streams.grouping.group_policy import DEFAULT_POLICY, MAX_GROUP_SIZE, GroupBy, GroupPolicy
from headrace.streams.grouping.group_state import Candidate, Cohort, GroupState, candidate_of, cohort, remembered

SOURCE = "/streams/group"
"""``ce_source`` of training groups and rejections."""


def cohort_of(reward: Reward, policy: GroupPolicy) -> Cohort | None:
    """The cohort that ``reward`` is grouped by; ``None`` where it is grouped by id, or by nothing."""
    if reward.group_id or not reward.cohort_key or policy.by is not GroupBy.COHORT:
        return None
    return cohort(reward.run, reward.spec, reward.cohort_key, reward.tenant)


def group(
    state: GroupState | None,
    reward: Reward,
    *,
    now_ms: int | None = None,
    policy: GroupPolicy = DEFAULT_POLICY,
    traceparent: str | None = None,
) -> tuple[GroupState | None, Outputs]:
    """Fold ``reward`` into its group.

    ``state`` is the group's, ``None`` at first; a reward that joins no group leaves it as it is. ``now_ms`` is log
    time, by default the end of the rewarded trajectory; ``traceparent`` is the trace of the reward's record. The
    outputs are decided here and never again.
    """
    now_ms = reward.ended_ms if now_ms is None else now_ms
    member = candidate_of(reward, traceparent)
    reason = turned_away(state, reward, policy)
    if reason is not None:
        return state, turned_away_at_once(reward, member, reason)
    if state is None:
        # The first reward of its trajectory came before, and has had its fate.
        return (
            (None, []) if reward.revision else _joined(opened(reward, policy, now_ms), reward, member, policy, now_ms)
        )
    if state.closed is not None:
        known = reward.revision > 0 or remembered(reward.trajectory_id) in state.closed
        return state, [] if known else [member_rejection(state, member, Reason.LATE_FOR_GROUP)]
    before = state.members.get(reward.trajectory_id)
    if before is None:
        if reward.revision:
            return state, []
        if len(state.members) >= MAX_GROUP_SIZE:  # nobody has said how many there will be
            return state, [member_rejection(state, member, Reason.OVERSIZE)]
        return _joined(state, reward, member, policy, now_ms)
    return (_with(state, member) if member.revision > before.revision else state), []


def expire(
    state: GroupState, now_ms: int, timeout_ms: int, policy: GroupPolicy = DEFAULT_POLICY
) -> tuple[GroupState, Outputs]:
    """Close a group that is still incomplete when its time is over: ``timeout_ms`` of log time, or the policy's.

    The decision is dated at the deadline, whenever it is noticed.
    """
    deadline = state.opened_ms + policy.timeout_ms(timeout_ms)
    if state.closed is not None or now_ms < deadline:
        return state, []
    scored = sum(is_comparable(member, state) for member in state.members.values())
    if policy.shrinks(cohort=state.cohort_key is not None) and scored >= policy.min_members:
        return close(state, deadline), fates(state, policy)
    members = [state.members[trajectory_id] for trajectory_id in sorted(state.members)]
    return close(state, deadline), [member_rejection(state, member, Reason.INCOMPLETE_GROUP) for member in members]


def alone(
    mean: RunningMean, reward: Reward, policy: GroupPolicy, *, now_ms: int, traceparent: str | None = None
) -> tuple[RunningMean, GroupState | None, Outputs]:
    """Decide ``reward`` by itself, against the ``mean`` of its cohort's rewards before it.

    Returns the mean with it, the memory of its group of one, and its fate; a reward that joins no group, or is a
    revision, changes nothing.
    """
    member = candidate_of(reward, traceparent)
    reason = turned_away(None, reward, policy)
    if reason is not None:
        return mean, None, turned_away_at_once(reward, member, reason)
    if reward.revision:
        return mean, None, []
    state = _with(opened(reward, policy, now_ms), member)
    after = mean if reward.total is None else mean.after(reward.total, policy.half_life)
    return after, close(state, now_ms), fates(state, policy, mean.value(policy.warmup))


def opened(reward: Reward, policy: GroupPolicy, now_ms: int) -> GroupState:
    """A group that waits for ``reward``, its first. A cohort's has an id that follows from its first member."""
    common = cohort_of(reward, policy)
    several = common is not None and policy.cohort_size > 1
    return GroupState(
        group_id=derived_id("cohort", *common, reward.trajectory_id) if common else reward.group_id or "",
        run=reward.run,
        tenant=reward.tenant,
        task_id=(reward.cohort_key if several else reward.task_id) or "",
        spec=reward.spec,
        maximum=reward.maximum,
        size=policy.cohort_size if common else reward.group_size or policy.size,
        opened_ms=now_ms,
        cohort_key=reward.cohort_key if common else None,
    )


def close(state: GroupState, now_ms: int) -> GroupState:
    """The memory of a group that was decided at ``now_ms``."""
    closed = tuple(map(remembered, sorted(state.members)))
    return msgspec.structs.replace(state, members={}, closed=closed, closed_ms=max(now_ms, state.opened_ms))


def turned_away(state: GroupState | None, reward: Reward, policy: GroupPolicy) -> Reason | None:
    """Why ``reward`` joins no group; ``None`` where it does."""
    if reward.purpose is Purpose.EVALUATE:
        return Reason.EVALUATION
    if reward.role is Role.FROZEN:
        return Reason.FROZEN_ROLE
    if not reward.group_id and cohort_of(reward, policy) is None:
        return Reason.NO_START if Defect.NO_START in reward.defects else Reason.NO_GROUP
    if (reward.group_size or 0) > MAX_GROUP_SIZE:
        return Reason.OVERSIZE
    if state is not None and (reward.run, reward.tenant) != (state.run, state.tenant):
        return Reason.FOREIGN_GROUP
    return None


def turned_away_at_once(reward: Reward, member: Candidate, reason: Reason) -> Outputs:
    """The rejection of a reward that joins no group; nothing for a revision, whose first reward was rejected."""
    if reward.revision:
        return []
    return [rejection(member, reason, run=reward.run, group_id=reward.group_id)]


def output_message(
    record: TrainingGroup | Rejection,
    time_ms: int,
    *,
    origin: str | None = None,
    rollouts: RolloutCounts | None = None,
) -> tuple[Topic, Message]:
    """Where ``record`` goes and how; ``time_ms`` is the log time of the decision, ``origin`` the trace it continues.
    A training group tells of ``rollouts`` in a header.

    Ids follow from what was decided on (the group; the trajectory and the stage), so an output that is sent again
    after a crash is the same record.
    """
    if isinstance(record, TrainingGroup):
        message = record_message(
            record,
            id=derived_id(record.TYPE, record.run, record.group_id),
            key=record.group_id,
            source=SOURCE,
            time_ms=time_ms,
            subject=record.group_id,
            origin=origin,
        )
        if rollouts is not None:
            message = replace(message, headers=[*message.headers, rollouts_header(rollouts)])
        return TRAINING, message
    return REJECTED, record_message(
        record,
        id=derived_id(record.TYPE, record.stage, record.trajectory_id),
        key=record.trajectory_id,
        source=SOURCE,
        time_ms=time_ms,
        subject=record.trajectory_id,
        origin=origin,
    )


def _joined(
    state: GroupState, reward: Reward, member: Candidate, policy: GroupPolicy, now_ms: int
) -> tuple[GroupState, Outputs]:
    """``state`` with a new member; closed and decided where that completes it."""
    state = _with(state, member, size=state.size or reward.group_size)
    if state.size is None or len(state.members) < state.size:
        return state, []
    return close(state, now_ms), fates(state, policy)


def _with(state: GroupState, member: Candidate, **fields: object) -> GroupState:
    return msgspec.structs.replace(state, members=state.members | {member.trajectory_id: member}, **fields)
