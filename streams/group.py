"""Group: rewards of one prompt → a training group, or one rejection each. Every reward gets exactly one fate.

    reward ──evaluation, frozen, no group──▶ rejected at once
       └─▶ collected by group id ──size reached──▶ no spread: all rejected (all success, all fail, all equal)
                    │                          └─▶ advantage = reward − mean; whole trajectories train,
                    │                              those with a defect are rejected with it
                    └──timeout of log time──▶ all rejected as incomplete

A fold without clock or I/O. State is keyed by trajectory id and never counts, so a reward that comes twice changes
nothing; a closed group keeps its members' ids to know a duplicate from a latecomer.
"""

from headrace.schemas.events import Purpose, Role
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Part
from headrace.schemas.records import Defect, Member, Reason, Reference, Rejection, Reward, Stage, TrainingGroup
from headrace.schemas.topics import REJECTED, TRAINING, Topic
from headrace.schemas.wire import Message, record_message

SOURCE = "/streams/group"
"""``ce_source`` of training groups and rejections."""

TOLERANCE = 1e-6
"""Rewards closer than this are equal. Tests the spread and not the mean: 0.1 + 0.2 is not 0.3."""

MAX_GROUP_SIZE = 1024
"""Largest group: its state must fit a Kafka record. A reward that asks for more is rejected as ``oversize``."""

BASELINE = "mean"


class Candidate(Part):
    """What of a reward the group needs."""

    trajectory_id: str
    """The trajectory."""
    trajectory: Reference
    """Where its record stands in ``trajectories``."""
    spec: str
    """Reward spec."""
    total: float | None
    """The reward."""
    defects: list[Defect] = []
    """Labels of the trajectory."""
    oldest_version: int | None = None
    """Oldest policy version among its tokens."""
    sampled_tokens: int = 0
    """Tokens sampled."""


class GroupState(Part):
    """A group that is being collected or, with ``closed``, the memory of one that was."""

    group_id: str
    """The group."""
    run: str
    """Training run of its first member; rewards of another run are turned away."""
    task_id: str
    """Task."""
    spec: str
    """Reward spec of its first member; totals under another cannot be compared."""
    maximum: float | None
    """Largest possible total."""
    size: int | None
    """Expected members; ``None`` until a member says."""
    opened_ms: int
    """Log time of the first member, Unix milliseconds."""
    members: list[Candidate] = []
    """Distinct trajectories so far; empty once closed."""
    closed: list[str] | None = None
    """Ids of the members of a closed group."""
    closed_ms: int | None = None
    """Log time of the decision."""


Outputs = list[TrainingGroup | Rejection]


def group(state: GroupState | None, reward: Reward, *, now_ms: int | None = None) -> tuple[GroupState | None, Outputs]:
    """Fold ``reward`` into its group.

    ``state`` is the group's, ``None`` at first; a reward that joins no group leaves it as it is. ``now_ms`` is log
    time, by default the end of the rewarded trajectory. The outputs are decided here and never again.
    """
    now_ms = reward.ended_ms if now_ms is None else now_ms
    reason = _turned_away(state, reward)
    if reason is not None:
        return state, [_rejection(_candidate(reward), reason, reward.run, reward.task_id, reward.group_id)]
    if state is None:
        state = GroupState(
            group_id=reward.group_id or "",
            run=reward.run,
            task_id=reward.task_id or "",
            spec=reward.spec,
            maximum=reward.maximum,
            size=reward.group_size,
            opened_ms=now_ms,
        )
    if reward.trajectory_id in (state.closed or ()):
        return state, []
    if state.closed is not None:
        return state, [_member_rejection(state, _candidate(reward), Reason.LATE_FOR_GROUP)]
    if any(member.trajectory_id == reward.trajectory_id for member in state.members):
        return state, []
    state = state.model_copy(
        update={"members": [*state.members, _candidate(reward)], "size": state.size or reward.group_size}
    )
    if state.size is None or len(state.members) < state.size:
        return state, []
    return _closed(state, now_ms), _decide(state)


def expire(state: GroupState, now_ms: int, timeout_ms: int) -> tuple[GroupState, list[Rejection]]:
    """Close a group that is still incomplete ``timeout_ms`` of log time after its first member.

    The decision is dated at the deadline, whenever it is noticed.
    """
    deadline = state.opened_ms + timeout_ms
    if state.closed is not None or now_ms < deadline:
        return state, []
    rejections = [_member_rejection(state, member, Reason.INCOMPLETE_GROUP) for member in _in_order(state)]
    return _closed(state, deadline), rejections


def output_message(record: TrainingGroup | Rejection, time_ms: int) -> tuple[Topic, Message]:
    """Where ``record`` goes and how; ``time_ms`` is the log time of the decision.

    Ids follow from what was decided on (the group; the trajectory and the stage), so an output that is sent again
    after a crash is the same record.
    """
    if isinstance(record, TrainingGroup):
        return TRAINING, record_message(
            record,
            id=derived_id(record.TYPE, record.run, record.group_id),
            key=record.group_id,
            source=SOURCE,
            time_ms=time_ms,
            subject=record.group_id,
        )
    return REJECTED, record_message(
        record,
        id=derived_id(record.TYPE, record.stage, record.trajectory_id),
        key=record.trajectory_id,
        source=SOURCE,
        time_ms=time_ms,
        subject=record.trajectory_id,
    )


def _turned_away(state: GroupState | None, reward: Reward) -> Reason | None:
    """Why ``reward`` joins no group; ``None`` where it does."""
    if reward.purpose is Purpose.EVALUATE:
        return Reason.EVALUATION
    if reward.role is Role.FROZEN:
        return Reason.FROZEN_ROLE
    if not reward.group_id:
        return Reason.NO_START if Defect.NO_START in reward.defects else Reason.NO_GROUP
    if (reward.group_size or 0) > MAX_GROUP_SIZE:
        return Reason.OVERSIZE
    if state is not None and reward.run != state.run:
        return Reason.OTHER_RUN
    return None


def _decide(state: GroupState) -> Outputs:
    """The fate of every member of a complete group, by trajectory id; the training group, if any, comes first."""
    scored = [(member, member.total) for member in _in_order(state) if _comparable(member, state)]
    rejections = {
        member.trajectory_id: _member_rejection(state, member, _defect(member) or Reason.UNSCORED)
        for member in state.members
        if not _comparable(member, state)
    }
    totals = [total for _, total in scored if total is not None]
    if totals and (equal := _no_spread(totals, state.maximum)):
        rejections |= {member.trajectory_id: _member_rejection(state, member, equal) for member, _ in scored}
        scored = []
    baseline = sum(totals) / len(totals) if totals else 0.0
    members = []
    for member, total in scored:
        if defect := _defect(member):
            rejections[member.trajectory_id] = _member_rejection(state, member, defect)
        elif total is not None and member.oldest_version is not None:
            members.append(
                Member(
                    trajectory_id=member.trajectory_id,
                    trajectory=member.trajectory,
                    reward=total,
                    advantage=total - baseline,
                    oldest_version=member.oldest_version,
                    sampled_tokens=member.sampled_tokens,
                )
            )
    outputs: Outputs = [rejections[trajectory_id] for trajectory_id in sorted(rejections)]
    if members:
        training = TrainingGroup(
            group_id=state.group_id,
            run=state.run,
            task_id=state.task_id,
            spec=state.spec,
            baseline=BASELINE,
            baseline_value=baseline,
            scored=len(totals),
            members=members,
            oldest_version=min(member.oldest_version for member in members),
        )
        outputs.insert(0, training)
    return outputs


def _comparable(member: Candidate, state: GroupState) -> bool:
    return member.total is not None and member.spec == state.spec


def _no_spread(totals: list[float], maximum: float | None) -> Reason | None:
    if max(totals) - min(totals) > TOLERANCE:
        return None
    if maximum is not None and min(totals) >= maximum - TOLERANCE:
        return Reason.ALL_SUCCESS
    return Reason.ALL_FAIL if max(totals) <= TOLERANCE else Reason.ALL_EQUAL


def _defect(member: Candidate) -> Reason | None:
    """Why ``member`` cannot be trained. The last two hold even where whoever wrote the record forgot the label."""
    if member.defects:
        return Reason(member.defects[0])
    if member.total is None:
        return None
    if member.sampled_tokens == 0:
        return Reason.NOTHING_SAMPLED
    return Reason.UNKNOWN_VERSION if member.oldest_version is None else None


def _closed(state: GroupState, now_ms: int) -> GroupState:
    closed = sorted(member.trajectory_id for member in state.members)
    return state.model_copy(update={"members": [], "closed": closed, "closed_ms": max(now_ms, state.opened_ms)})


def _in_order(state: GroupState) -> list[Candidate]:
    return sorted(state.members, key=lambda member: member.trajectory_id)


def _candidate(reward: Reward) -> Candidate:
    return Candidate(
        trajectory_id=reward.trajectory_id,
        trajectory=reward.trajectory,
        spec=reward.spec,
        total=reward.total,
        defects=reward.defects,
        oldest_version=reward.oldest_version,
        sampled_tokens=reward.sampled_tokens,
    )


def _member_rejection(state: GroupState, member: Candidate, reason: Reason) -> Rejection:
    return _rejection(member, reason, state.run, state.task_id, state.group_id)


def _rejection(member: Candidate, reason: Reason, run: str, task_id: str | None, group_id: str | None) -> Rejection:
    return Rejection(
        trajectory_id=member.trajectory_id,
        trajectory=member.trajectory,
        stage=Stage.GROUP,
        reason=reason,
        run=run,
        task_id=task_id,
        group_id=group_id,
        policy_version=member.oldest_version,
        reward=member.total,
    )
