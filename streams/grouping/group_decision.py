"""Decides a complete group: which members are trained with which advantage, and which are rejected and why.

    total unknown, or of another spec      rejected: its first defect, else ``unscored``
    ended in order to be continued         rejected: its first defect, else ``forked``; with ``forked_prefix: once`` its
                                           total is the mean of its continuations'
    no baseline yet                        rejected: ``no_baseline``
    the decision itself raises             rejected: ``raised``
    no gradient in the whole group         rejected: ``zero_variance_…``
    a defect                               rejected with it; its reward counted for the baseline
    else                                   trained: advantage = reward − baseline

With the group's mean as baseline, a group of equal rewards yields no gradient. With a threshold or a running mean it
yields one, unless every reward is within the tolerance of the baseline. How the trainer uses the advantage:
``trainer/batches/advantages.py``.
"""

import logging
from collections.abc import Sequence

import msgspec

from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reward import Hint
from headrace.schemas.topics import TRAINING
from headrace.streams.grouping.baselines import Baseline, constant, leave_one_out, mean, standard_deviation
from headrace.streams.grouping.continuations import ForkedPrefix
from headrace.streams.grouping.group_policy import GroupPolicy
from headrace.streams.grouping.group_state import Candidate, GroupState
from headrace.streams.rewards.toggle import toggled

Outputs = list[TrainingGroup | Rejection]

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES = 16 * 1024
"""Space for key and headers."""

_HINT_BYTES = 8 * 1024
"""Most bytes of a hint in JSON: its tokens as base64, and two names."""


def fates(state: GroupState, policy: GroupPolicy, running: float | None = None) -> Outputs:
    """As :func:`decide`; if that raises, every member is rejected as ``raised``, so that one group ends no worker."""
    try:
        return _fitting(decide(state, policy, running), state)
    except MemoryError:
        raise
    except Exception:
        logger.exception("the fate of group %r could not be decided: its members are rejected", state.group_id)
        return [member_rejection(state, state.members[name], Reason.RAISED) for name in sorted(state.members)]


def _fitting(outputs: Outputs, state: GroupState) -> Outputs:
    """Returns ``outputs``; a training group that is too large for its topic loses its hints, or, if that is not enough,
    its members are rejected as ``oversize``."""
    group = outputs[0] if outputs else None
    if not isinstance(group, TrainingGroup):
        return outputs
    # In JSON, a byte of an id takes at most 6 bytes, and a member's numbers take about 300.
    hints = sum(len(member.hints) for member in group.members)
    largest = sum(512 + 6 * len(member.trajectory_id.encode()) for member in group.members) + hints * _HINT_BYTES
    if largest < TRAINING.max_bytes // 2 or _fits(group):
        return outputs
    if hints:
        members = [member.model_copy(update={"hints": []}) for member in group.members]
        group = group.model_copy(update={"members": members, "hints_refused": hints})
        if _fits(group):
            return [group, *outputs[1:]]
    fates = {
        each.trajectory_id: member_rejection(state, state.members[each.trajectory_id], Reason.OVERSIZE)
        for each in group.members
    }
    fates |= {each.trajectory_id: each for each in outputs if isinstance(each, Rejection)}
    return [fates[trajectory_id] for trajectory_id in sorted(fates)]


def _fits(group: TrainingGroup) -> bool:
    return len(group.model_dump_json().encode()) <= TRAINING.max_bytes - _ENVELOPE_BYTES


def decide(state: GroupState, policy: GroupPolicy, running: float | None = None) -> Outputs:
    """Returns the fates of all members in order of trajectory id; the training group, if any, comes first.

    ``running`` is the mean of the cohort's earlier rewards, for a member that is decided alone.
    """
    members = [state.members[trajectory_id] for trajectory_id in sorted(state.members)]
    scored = [member for member in members if is_comparable(member, state)]
    fates = {
        member.trajectory_id: member_rejection(state, member, _defect(member) or _no_total(member, policy))
        for member in members
        if not is_comparable(member, state)
    }
    rewards = _counted(state, policy, scored)
    baseline = baseline_of(state, policy)
    baselines = _baselines(rewards, baseline, policy, running)
    reason = Reason.NO_BASELINE if baselines is None else _no_gradient(rewards, baselines, baseline, state, policy)
    trained = []
    for member, reward, subtracted in zip(scored, rewards, baselines or rewards, strict=True):
        why = reason or _defect(member)
        if why is not None:
            fates[member.trajectory_id] = member_rejection(state, member, why)
        elif member.oldest_version is not None:
            trained.append(
                Member(
                    trajectory_id=member.trajectory_id,
                    trajectory=member.trajectory,
                    reward=reward,
                    advantage=reward - subtracted,
                    baseline=subtracted if baseline is Baseline.LEAVE_ONE_OUT else None,
                    oldest_version=member.oldest_version,
                    sampled_tokens=member.sampled_tokens,
                    hints=[Hint(**msgspec.structs.asdict(each)) for each in member.hints],
                )
            )
    outputs: Outputs = [fates[trajectory_id] for trajectory_id in sorted(fates)]
    if trained and baselines is not None:
        group = TrainingGroup(
            group_id=state.group_id,
            run=state.run,
            task_id=state.task_id,
            spec=state.spec,
            baseline=baseline.value,
            baseline_value=mean(rewards)[0] if baseline is Baseline.LEAVE_ONE_OUT else baselines[0],
            cohort_key=state.cohort_key,
            expected=state.size,
            scored=len(rewards),
            reward_std=standard_deviation(rewards),
            members=trained,
            oldest_version=min(member.oldest_version for member in trained),
        )
        outputs.insert(0, group)
    return outputs


def _no_total(member: Candidate, policy: GroupPolicy) -> Reason:
    return Reason.FORKED if member.continuations and policy.forked_prefix is ForkedPrefix.NEVER else Reason.UNSCORED


def baseline_of(state: GroupState, policy: GroupPolicy) -> Baseline:
    """Returns the baseline of a group. A group by id has no running mean and uses the mean of its members."""
    if policy.baseline is Baseline.RUNNING and state.cohort_key is None:
        return Baseline.MEAN
    return policy.baseline


def is_comparable(member: Candidate, state: GroupState) -> bool:
    """Whether the member has a total under the group's reward spec."""
    return member.total is not None and member.spec == state.spec


def member_rejection(state: GroupState, member: Candidate, reason: Reason) -> Rejection:
    """Returns the rejection of ``member`` as a member of the group."""
    return rejection(member, reason, run=state.run, group_id=state.group_id)


def rejection(member: Candidate, reason: Reason, *, run: str, group_id: str | None) -> Rejection:
    """Returns the rejection of ``member``."""
    return Rejection(
        trajectory_id=member.trajectory_id,
        trajectory=member.trajectory,
        stage=Stage.GROUP,
        reason=reason,
        run=run,
        task_id=member.task_id,
        group_id=group_id,
        policy_version=member.oldest_version,
        reward=member.total,
    )


def _counted(state: GroupState, policy: GroupPolicy, scored: Sequence[Candidate]) -> list[float]:
    """Returns the rewards to use: under Toggle, responses over their budget get 0 in every other phase."""
    rewards = [member.total for member in scored if member.total is not None]
    versions = [member.oldest_version for member in scored if member.oldest_version is not None]
    if policy.toggle is None or not versions:
        return rewards
    sources = {member.task_source for member in scored}
    return toggled(
        rewards,
        [member.sampled_tokens for member in scored],
        task_id=state.task_id,
        source=sources.pop() if len(sources) == 1 else "",  # a cohort may have several
        version=min(versions),
        toggle=policy.toggle,
        correct=[reward / state.maximum for reward in rewards] if state.maximum else None,
    )


def _baselines(
    rewards: Sequence[float], baseline: Baseline, policy: GroupPolicy, running: float | None
) -> list[float] | None:
    """Returns the baseline of each reward; ``None`` if there is no baseline yet."""
    if not rewards:
        return []
    if baseline is Baseline.RUNNING:
        return None if running is None else constant(rewards, running)
    if baseline is Baseline.THRESHOLD:
        return constant(rewards, policy.threshold)
    return leave_one_out(rewards) if baseline is Baseline.LEAVE_ONE_OUT else mean(rewards)


def _no_gradient(
    rewards: Sequence[float], baselines: Sequence[float], baseline: Baseline, state: GroupState, policy: GroupPolicy
) -> Reason | None:
    """Returns why the group as a whole carries no gradient; ``None`` if it does."""
    if not rewards:
        return None
    if baseline in (Baseline.MEAN, Baseline.LEAVE_ONE_OUT):
        spread = max(rewards) - min(rewards)
    else:
        spread = max(abs(reward - value) for reward, value in zip(rewards, baselines, strict=True))
    if spread > policy.tolerance:
        return None
    if state.maximum is not None and min(rewards) >= state.maximum - policy.tolerance:
        return Reason.ALL_SUCCESS
    # A reward equal to a threshold is neither success nor failure.
    failed = max(rewards) <= policy.tolerance and baseline is not Baseline.THRESHOLD
    return Reason.ALL_FAIL if failed else Reason.ALL_EQUAL


def _defect(member: Candidate) -> Reason | None:
    """Returns why ``member`` cannot be trained. The last two checks do not rely on labels in the record."""
    if member.defects:
        return Reason(member.defects[0])
    if member.total is None:
        return None
    if member.sampled_tokens == 0:
        return Reason.NOTHING_SAMPLED
    return Reason.UNKNOWN_VERSION if member.oldest_version is None else None
