"""Admission: which members of a group are trained, decided when the batch is made and not when they were sampled.

Pure. A member that is turned away gets a ``Rejection`` with its reason; the others are trained with the advantage that
the whole group gave them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.read_back import Place
from headrace.schemas.records import Member, Reason, Reference, Rejection, Stage, TrainingGroup, Trajectory
from headrace.trainer.batches.advantages import reward_std
from headrace.trainer.batches.batch import AdmittedGroup, ResolvedMember


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What may be trained."""

    run: str
    """Training run."""
    max_staleness: int
    """Versions that a member's oldest token may lie behind."""
    vocabulary_size: int
    """Token ids must be below it."""
    max_positions: int
    """Longest segment that the model can take, in tokens."""


def place_of(reference: Reference) -> Place:
    """``reference`` as a key."""
    return reference.partition, reference.offset


def places_to_read(group: TrainingGroup, rules: AdmissionRules, version: int) -> list[Place]:
    """Where the trajectories stand that must be read to decide: members that are stale need not be."""
    return [place_of(member.trajectory) for member in group.members if not _is_stale(member, rules, version)]


def admit(
    group: TrainingGroup,
    reference: Reference,
    trajectories: Mapping[Place, Trajectory],
    rules: AdmissionRules,
    version: int,
) -> tuple[AdmittedGroup | None, list[Rejection]]:
    """What of ``group`` is trained by policy ``version``, and what is not.

    ``trajectories`` holds what was found at :func:`places_to_read`. Members keep the order of their ids; a group of
    which nothing is left is ``None``.
    """
    kept, rejections = [], []
    for member in sorted(group.members, key=lambda member: member.trajectory_id):
        trajectory = trajectories.get(place_of(member.trajectory))
        reason = Reason.STALE if _is_stale(member, rules, version) else _defect(member, trajectory, rules)
        if reason is not None:
            rejections.append(_rejection(group, member, reason))
        elif trajectory is not None:
            kept.append(ResolvedMember(member, trajectory))
    admitted = AdmittedGroup(group.group_id, reference, tuple(kept), reward_std(group)) if kept else None
    return admitted, rejections


def _is_stale(member: Member, rules: AdmissionRules, version: int) -> bool:
    return version - member.oldest_version > rules.max_staleness


def _defect(member: Member, trajectory: Trajectory | None, rules: AdmissionRules) -> Reason | None:
    if trajectory is None or trajectory.trajectory_id != member.trajectory_id:
        return Reason.UNRESOLVED
    if trajectory.started is not None and trajectory.started.run != rules.run:
        return Reason.OTHER_RUN
    segments = [segment for segment in trajectory.segments if any(segment.loss_mask)]
    for segment in segments:
        if segment.logprobs is None:
            return Reason.NO_LOGPROBS
        if not segment.version_spans or any(span.version is None for span in segment.version_spans):
            return Reason.UNKNOWN_VERSION
        if segment.loss_mask[0]:
            return Reason.BROKEN_PREFIX  # nothing stands before the first token, so nothing can predict it
        if len(segment.token_ids) > rules.max_positions:
            return Reason.TOO_LONG
        if min(segment.token_ids) < 0 or max(segment.token_ids) >= rules.vocabulary_size:
            return Reason.VOCABULARY
    sampled = sum(sum(segment.loss_mask) for segment in segments)
    return None if sampled == member.sampled_tokens else Reason.UNRESOLVED


def _rejection(group: TrainingGroup, member: Member, reason: Reason) -> Rejection:
    return Rejection(
        trajectory_id=member.trajectory_id,
        trajectory=member.trajectory,
        stage=Stage.ADMISSION,
        reason=reason,
        run=group.run,
        task_id=group.task_id,
        group_id=group.group_id,
        policy_version=member.oldest_version,
        reward=member.reward,
    )
