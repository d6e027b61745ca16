"""Simulated attempts as the records of headrace: trajectories with tokens, and groups by the shipped rules.

trajectory = assembled("t-3", attempt.calls, version=7, temperature=1.0)      # one segment a context that only grew
group = decided_group("g-1", [trajectory, …], [0.2, 1.0, …], GroupPolicy(), maximum=2.0)
"""

from array import array
from collections.abc import Sequence

from headrace.schemas.events import SamplingSpan, TrajectoryStarted, VersionSpan
from headrace.schemas.records.group import Reason, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.streams.grouping.group_decision import fates
from headrace.streams.grouping.group_policy import GroupPolicy
from headrace.streams.grouping.group_state import Candidate, GroupState
from headrace.trainer.batches.advantages import reward_std
from headrace.trainer.batches.batch import AdmittedGroup, ResolvedMember
from tests.simulator.sampling import Call

RUN, SPEC = "simulated", "simulated@1"
NOWHERE = Reference(partition=0, offset=0)
"""Reference of records that are in no log."""


def segments_of(calls: Sequence[Call], *, version: int, temperature: float = 1.0) -> list[Segment]:
    """Returns the segments of a trajectory: each covers calls whose contexts extend one another."""
    segments: list[Segment] = []
    token_ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []

    def close() -> None:
        count = len(logprobs)
        segments.append(
            Segment(
                token_ids=array("i", token_ids),
                loss_mask=mask,
                logprobs=array("f", logprobs),
                version_spans=[VersionSpan(version=version, start=0, end=count)],
                sampling_spans=[SamplingSpan(temperature=temperature, start=0, end=count)],
            )
        )

    for call in calls:
        if token_ids and list(call.context[: len(token_ids)]) != token_ids:
            close()
            token_ids, mask, logprobs = [], [], []
        added = call.context[len(token_ids) :]
        token_ids = [*token_ids, *added, *call.sampled]
        mask = [*mask, *[0] * len(added), *[1] * len(call.sampled)]
        logprobs = [*logprobs, *call.logprobs]
    close()
    return segments


def assembled(trajectory_id: str, calls: Sequence[Call], *, version: int, temperature: float = 1.0) -> Trajectory:
    """Returns the record with the tokens of ``calls``, at least one, all sampled by policy ``version``."""
    return Trajectory(
        trajectory_id=trajectory_id,
        started=TrajectoryStarted(task_id="simulated", agent="simulated", run=RUN),
        segments=segments_of(calls, version=version, temperature=temperature),
        sampled_tokens=sum(len(call.sampled) for call in calls),
        first=NOWHERE,
        last=NOWHERE,
        started_ms=0,
        ended_ms=0,
    )


def decided_group(
    group_id: str,
    trajectories: Sequence[Trajectory],
    rewards: Sequence[float],
    policy: GroupPolicy,
    *,
    maximum: float | None = None,
) -> AdmittedGroup | Reason:
    """Returns the group as the trainer admits it, or the reason for which it has no gradient."""
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    state = GroupState(
        group_id=group_id,
        run=RUN,
        task_id=group_id,
        spec=SPEC,
        maximum=maximum,
        size=len(trajectories),
        opened_ms=0,
        members={
            trajectory.trajectory_id: Candidate(
                trajectory_id=trajectory.trajectory_id,
                partition=0,
                offset=0,
                spec=SPEC,
                total=reward,
                oldest_version=min(trajectory.versions),
                sampled_tokens=trajectory.sampled_tokens,
            )
            for trajectory, reward in zip(trajectories, rewards, strict=True)
        },
    )
    group = fates(state, policy)[0]
    if not isinstance(group, TrainingGroup):
        return group.reason
    members = tuple(ResolvedMember(member, by_id[member.trajectory_id]) for member in group.members)
    return AdmittedGroup(group_id, NOWHERE, members, reward_std(group), task_id=group_id)
