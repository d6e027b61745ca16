"""Admission: which members of a group are trained, decided when the batch is made and not when they were sampled.

Pure. A member that is turned away gets a ``Rejection`` with its reason; the others are trained with the advantage that
the whole group gave them. Age is that of a member's oldest token, against the policy that is trained.

A group is looked at twice. When it arrives, :func:`places_to_read` leaves out the members that are too old already: age
only grows. When its batch is made, :func:`admit` decides by the policy of then. What is told rests on that alone, so a
restart, which reads the group again, tells the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.events import LEAST_TEMPERATURE, tile
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.trainer.admission.bounds import AdmissionBounds
from headrace.trainer.batches.advantages import members_std, reward_std
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
    bounds: AdmissionBounds = field(default_factory=AdmissionBounds)
    """Bounds in tokens."""


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
        if reason is None and trajectory is not None:
            reason = _age_fault(member, trajectory, rules, version)
        if reason is not None:
            rejections.append(rejection(member, reason, run=group.run, task_id=group.task_id, group_id=group.group_id))
        elif trajectory is not None:
            kept.append(ResolvedMember(member, trajectory))
    most = rules.bounds.max_group_tokens
    if most is not None and sum(_trained_tokens(resolved.trajectory) for resolved in kept) > most:
        rejections += [
            rejection(
                resolved.member,
                Reason.GROUP_TOO_LONG,
                run=group.run,
                task_id=group.task_id,
                group_id=group.group_id,
            )
            for resolved in kept
        ]
        kept = []
    if not kept:
        return None, rejections
    return AdmittedGroup(
        group.group_id, reference, tuple(kept), reward_std(group), members_std(group), group.task_id
    ), rejections


def rejection(
    member: Member,
    reason: Reason,
    *,
    run: str,
    task_id: str | None,
    group_id: str,
    stage: Stage = Stage.ADMISSION,
) -> Rejection:
    """The record that ``member`` of the group will not be trained."""
    return Rejection(
        trajectory_id=member.trajectory_id,
        trajectory=member.trajectory,
        stage=stage,
        reason=reason,
        run=run,
        task_id=task_id,
        group_id=group_id,
        policy_version=member.oldest_version,
        reward=member.reward,
    )


def age_when_rejected(rejection: Rejection, version: int) -> int:
    """Versions between the oldest token of what is turned away and policy ``version``; −1 where its record is gone and
    nobody knows."""
    return -1 if rejection.policy_version is None else version - rejection.policy_version


def _is_stale(member: Member, rules: AdmissionRules, version: int) -> bool:
    """By what the group's record says, before the trajectory is read."""
    return version - member.oldest_version > rules.max_staleness


def _age_fault(member: Member, trajectory: Trajectory, rules: AdmissionRules, version: int) -> Reason | None:
    """What a sound member's age has against it."""
    if max(trajectory.versions, default=version) > version:
        return Reason.UNKNOWN_VERSION  # none that this run has made: its engine, which names no run, served another's
    if version - min(trajectory.versions, default=version) > rules.max_staleness:
        return Reason.STALE
    spans = [span for segment in _trained_segments(trajectory) for span in segment.version_spans]
    oldest_fresh = version - rules.bounds.stale_after
    stale = sum(span.end - span.start for span in spans if span.version is not None and span.version < oldest_fresh)
    # A share that stands in a file is the nearest double to it, and so is this quotient: at the bound they are equal.
    return Reason.STALE_TOKENS if stale / member.sampled_tokens > rules.bounds.max_stale_share else None


def _defect(member: Member, trajectory: Trajectory | None, rules: AdmissionRules) -> Reason | None:
    if trajectory is None or trajectory.trajectory_id != member.trajectory_id:
        return Reason.UNRESOLVED
    if trajectory.started is None or trajectory.started.run != rules.run:
        return Reason.OTHER_RUN
    if any(trajectory.is_foreign(span) for segment in trajectory.segments for span in segment.version_spans):
        return Reason.OTHER_RUN  # whatever the labels say: its engine served another run's versions
    bounds, segments = rules.bounds, _trained_segments(trajectory)
    longest = min(rules.max_positions, bounds.max_segment_tokens or rules.max_positions)
    for segment in segments:
        if segment.logprobs is None:
            return Reason.NO_LOGPROBS
        if any(span.version is None for span in segment.version_spans) or not tile(
            segment.version_spans, sum(segment.loss_mask)
        ):
            return Reason.UNKNOWN_VERSION
        if (unknown := _sampling_fault(segment)) is not None:
            return unknown
        if segment.loss_mask[0]:
            return Reason.BROKEN_PREFIX  # nothing stands before the first token, so nothing can predict it
        if len(segment.token_ids) > longest:
            return Reason.TOO_LONG
        if min(segment.token_ids) < 0 or max(segment.token_ids) >= rules.vocabulary_size:
            return Reason.VOCABULARY
    if bounds.max_trajectory_tokens is not None and _trained_tokens(trajectory) > bounds.max_trajectory_tokens:
        return Reason.TOO_LONG
    sampled = sum(sum(segment.loss_mask) for segment in segments)
    return None if sampled == member.sampled_tokens else Reason.UNRESOLVED


def _sampling_fault(segment: Segment) -> Reason | None:
    """What the temperatures of a segment have against it; the labels say the same where they were made with it."""
    temperatures = [span.temperature for span in segment.sampling_spans]
    if any(temperature is None for temperature in temperatures) or not tile(
        segment.sampling_spans, sum(segment.loss_mask)
    ):
        return Reason.UNKNOWN_SAMPLING  # in a record from before temperatures were kept, too
    greedy = any(temperature is not None and temperature < LEAST_TEMPERATURE for temperature in temperatures)
    return Reason.GREEDY_SAMPLING if greedy else None


def _trained_segments(trajectory: Trajectory) -> list[Segment]:
    return [segment for segment in trajectory.segments if any(segment.loss_mask)]


def _trained_tokens(trajectory: Trajectory) -> int:
    return sum(len(segment.token_ids) for segment in _trained_segments(trajectory))
