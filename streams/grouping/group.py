"""Groups the rewards of one prompt into a training group, or one rejection each. Every reward gets exactly one fate.

    reward ──evaluation, frozen, replaced, no group──▶ rejected immediately
       └─▶ collected by group id, or by cohort ──size reached──▶ decided (``group_decision``)
                    │                                              ▲
                    └──timed out──▶ all rejected as incomplete, or shrunk ┘

A fold without clock or I/O, configured by :class:`GroupPolicy`. State is keyed by trajectory id and does not count
rewards, so a duplicate reward changes nothing; a closed group keeps its members' ids to tell a duplicate from a late
reward. A revision replaces the trajectory's reward while the group is open, and is ignored afterwards.
"""

from dataclasses import replace

import msgspec

from headrace.schemas.events import EndStatus, Purpose, Role
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
    """Returns the cohort that ``reward`` is grouped by; ``None`` if it is grouped by id or not at all."""
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

    ``state`` is the group's state, initially ``None``; a reward that joins no group leaves it unchanged. ``now_ms`` is
    stream time, by default the end of the rewarded trajectory; ``traceparent`` is the trace of the reward's record. The
    outputs are final.
    """
    now_ms = reward.ended_ms if now_ms is None else now_ms
    member = candidate_of(reward, traceparent)
    reason = rejection_reason(state, reward, policy)
    if reason is not None:
        return state, immediate_rejection(reward, member, reason)
    if state is None:
        # A revision without a group: the first reward of its trajectory was already decided.
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
        if len(state.members) >= MAX_GROUP_SIZE:  # the expected size is unknown
            return state, [member_rejection(state, member, Reason.OVERSIZE)]
        return _joined(state, reward, member, policy, now_ms)
    return (_with(state, member) if member.revision > before.revision else state), []


def expire(
    state: GroupState, now_ms: int, timeout_ms: int, policy: GroupPolicy = DEFAULT_POLICY
) -> tuple[GroupState, Outputs]:
    """Close a group that is still incomplete after ``timeout_ms`` of stream time, or after its policy's timeout.

    The decision is dated at the deadline, however late it is made.
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
    """Decide ``reward`` alone, against the ``mean`` of its cohort's earlier rewards.

    Returns the updated mean, the closed state of its group of one, and its fate. A reward that joins no group, or is a
    revision, changes nothing.
    """
    member = candidate_of(reward, traceparent)
    reason = rejection_reason(None, reward, policy)
    if reason is not None:
        return mean, None, immediate_rejection(reward, member, reason)
    if reward.revision:
        return mean, None, []
    state = _with(opened(reward, policy, now_ms), member)
    after = mean if reward.total is None else mean.after(reward.total, policy.half_life)
    return after, close(state, now_ms), fates(state, policy, mean.value(policy.warmup))


def opened(reward: Reward, policy: GroupPolicy, now_ms: int) -> GroupState:
    """Returns a new group for ``reward``, its first member. The id of a cohort's group is derived from that member."""
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
    """Returns the closed state of a group that was decided at ``now_ms``."""
    closed = tuple(map(remembered, sorted(state.members)))
    return msgspec.structs.replace(state, members={}, closed=closed, closed_ms=max(now_ms, state.opened_ms))


def rejection_reason(state: GroupState | None, reward: Reward, policy: GroupPolicy) -> Reason | None:
    """Returns why ``reward`` joins no group; ``None`` if it does."""
    if reward.purpose is Purpose.EVALUATE:
        return Reason.EVALUATION
    if reward.role is Role.FROZEN:
        return Reason.FROZEN_ROLE
    if reward.status is EndStatus.RESTARTED:  # its sampler ended and replaced it: no member, however it was scored
        return Reason.RESTARTED
    if not reward.group_id and cohort_of(reward, policy) is None:
        return Reason.NO_START if Defect.NO_START in reward.defects else Reason.NO_GROUP
    if (reward.group_size or 0) > MAX_GROUP_SIZE:
        return Reason.OVERSIZE
    if state is not None and (reward.run, reward.tenant) != (state.run, state.tenant):
        return Reason.FOREIGN_GROUP
    return None


def immediate_rejection(reward: Reward, member: Candidate, reason: Reason) -> Outputs:
    """Returns the rejection of a reward that joins no group; none for a revision, whose first reward was rejected."""
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
    """Returns topic and message of ``record``. ``time_ms`` is the stream time of the decision, ``origin`` the trace
    that it continues. A training group carries ``rollouts`` in a header.

    Ids are derived from the subject (the group; the trajectory and the stage), so an output that is sent again after a
    crash has the same id.
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
    """Returns ``state`` with a new member, closed and decided if that completes it."""
    state = _with(state, member, size=state.size or reward.group_size)
    if state.size is None or len(state.members) < state.size:
        return state, []
    return close(state, now_ms), fates(state, policy)


def _with(state: GroupState, member: Candidate, **fields: object) -> GroupState:
    return msgspec.structs.replace(state, members=state.members | {member.trajectory_id: member}, **fields)
