"""Admission: decides which members of a group are trained, when the batch is made and not when they were sampled.

Pure. A rejected member gets a ``Rejection`` with its reason; the others are trained with the advantage that they got
from the whole group. A member's age is the number of versions between its oldest token and the policy that is trained.

A group is checked twice. When it arrives, :func:`places_to_read` omits the members that are too old already, because
age only grows. When its batch is made, :func:`admit` decides, by the policy of that moment. Published rejections depend
on :func:`admit` alone, so a restarted trainer, which reads the group again, publishes the same ones.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headrace.schemas.events import LEAST_TEMPERATURE, tile
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.trainer.admission.bounds import AdmissionBounds
from headrace.trainer.admission.pauses import NOTHING_PAUSED, PausedSource, source_of
from headrace.trainer.batches.advantages import members_std, reward_std
from headrace.trainer.batches.batch import AdmittedGroup, ResolvedMember


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What may be trained, and within which bounds."""

    run: str
    """Training run."""
    max_staleness: int
    """Staleness bound: versions by which a member's oldest token may lag behind the policy that is trained."""
    vocabulary_size: int
    """Token ids must be below it."""
    max_positions: int
    """Longest segment that the model can take, in tokens."""
    bounds: AdmissionBounds = field(default_factory=AdmissionBounds)
    """Bounds in tokens."""


def place_of(reference: Reference) -> Place:
    """Returns ``reference`` as a hashable place."""
    return reference.partition, reference.offset


def places_to_read(group: TrainingGroup, rules: AdmissionRules, version: int) -> list[Place]:
    """Returns the places of the trajectories that a decision needs: those of members that are not stale already."""
    return [place_of(member.trajectory) for member in group.members if not _is_stale(member, rules, version)]


def admit(
    group: TrainingGroup,
    reference: Reference,
    trajectories: Mapping[Place, Trajectory],
    rules: AdmissionRules,
    version: int,
    paused: Collection[PausedSource] = NOTHING_PAUSED,
) -> tuple[AdmittedGroup | None, list[Rejection]]:
    """Returns the members of ``group`` that policy ``version`` is trained on, and the rejections of the others.

    ``trajectories`` holds the records found at :func:`places_to_read`, ``paused`` the agents and task sources whose
    admission is paused. Members are ordered by trajectory id. The group is ``None`` if no member is left.
    """
    kept, rejections = [], []
    for member in sorted(group.members, key=lambda member: member.trajectory_id):
        trajectory = trajectories.get(place_of(member.trajectory))
        reason = Reason.STALE if _is_stale(member, rules, version) else _defect(member, trajectory, rules)
        if reason is None and trajectory is not None:
            reason = _age_fault(member, trajectory, rules, version)
            if reason is None and source_of(trajectory) in paused:
                reason = Reason.ADMISSION_PAUSED
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
        group.group_id,
        reference,
        tuple(kept),
        reward_std(group),
        members_std(group),
        group.task_id,
        group.hints_refused,
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
    """Returns the record that ``member`` of the group is not trained."""
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
    """Returns the versions between the oldest token of a rejected trajectory and policy ``version``; −1 if its record
    has expired and its age is unknown."""
    return -1 if rejection.policy_version is None else version - rejection.policy_version


def _is_stale(member: Member, rules: AdmissionRules, version: int) -> bool:
    """Whether ``member`` is too old according to the group's record, before its trajectory is read."""
    return version - member.oldest_version > rules.max_staleness


def _age_fault(member: Member, trajectory: Trajectory, rules: AdmissionRules, version: int) -> Reason | None:
    """Returns the reason to reject a member without defects because of its tokens' versions, if there is one."""
    if max(trajectory.versions, default=version) > version:
        return Reason.UNKNOWN_VERSION  # this run has not made it yet: an engine that names no run served another's
    if version - min(trajectory.versions, default=version) > rules.max_staleness:
        return Reason.STALE
    spans = [span for segment in _trained_segments(trajectory) for span in segment.version_spans]
    oldest_fresh = version - rules.bounds.stale_after
    stale = sum(span.end - span.start for span in spans if span.version is not None and span.version < oldest_fresh)
    # A share in a settings file is the nearest double to it, and so is this quotient: at the bound they are equal.
    return Reason.STALE_TOKENS if stale / member.sampled_tokens > rules.bounds.max_stale_share else None


def _defect(member: Member, trajectory: Trajectory | None, rules: AdmissionRules) -> Reason | None:
    if trajectory is None or trajectory.trajectory_id != member.trajectory_id:
        return Reason.UNRESOLVED
    if trajectory.started is None or trajectory.started.run != rules.run:
        return Reason.OTHER_RUN
    if any(trajectory.is_foreign(span) for segment in trajectory.segments for span in segment.version_spans):
        return Reason.OTHER_RUN  # whatever its labels are: the engine served another run's versions
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
            return Reason.BROKEN_PREFIX  # the first token has no context to be predicted from
        if len(segment.token_ids) > longest:
            return Reason.TOO_LONG
        if min(segment.token_ids) < 0 or max(segment.token_ids) >= rules.vocabulary_size:
            return Reason.VOCABULARY
    if bounds.max_trajectory_tokens is not None and _trained_tokens(trajectory) > bounds.max_trajectory_tokens:
        return Reason.TOO_LONG
    sampled = sum(sum(segment.loss_mask) for segment in segments)
    return None if sampled == member.sampled_tokens else Reason.UNRESOLVED


def _sampling_fault(segment: Segment) -> Reason | None:
    """Returns the reason to reject a segment because of its temperatures; labels of newer records agree with it."""
    temperatures = [span.temperature for span in segment.sampling_spans]
    if any(temperature is None for temperature in temperatures) or not tile(
        segment.sampling_spans, sum(segment.loss_mask)
    ):
        return Reason.UNKNOWN_SAMPLING  # also in records made before temperatures were recorded
    greedy = any(temperature is not None and temperature < LEAST_TEMPERATURE for temperature in temperatures)
    return Reason.GREEDY_SAMPLING if greedy else None


def _trained_segments(trajectory: Trajectory) -> list[Segment]:
    return [segment for segment in trajectory.segments if any(segment.loss_mask)]


def _trained_tokens(trajectory: Trajectory) -> int:
    return sum(len(segment.token_ids) for segment in _trained_segments(trajectory))
