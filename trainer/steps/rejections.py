"""Rejections at a step: of all trajectories of a skipped step, or of those with implausible log-probabilities. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace.schemas.records.alert import Severity
from headrace.schemas.records.group import Reason, Stage
from headrace.trainer.admission.admission import age_when_rejected, rejection
from headrace.trainer.announcements.alerts import trainer_alert
from headrace.trainer.announcements.announcement import announcement
from headrace.trainer.batches.batch import AdmittedGroup
from headrace.trainer.checkpoints.position import Position


def without_members(
    position: Position, groups: Sequence[AdmittedGroup], numbers: Collection[int], *, run: str
) -> Position:
    """Returns the position after rejecting the members of ``groups`` with these ``numbers`` in the batch's order.

    The other members stay pending with the advantages that they got from the whole group; a group without any is
    removed. The abandoned step does not count as an attempt of the remaining members.
    """
    pending, rejections, touched, first = [], [], [], 0
    for group in groups:
        last = first + len(group.members)
        kept = tuple(one for number, one in enumerate(group.members, first) if number not in numbers)
        rejections += [
            rejection(
                one.member,
                Reason.IMPLAUSIBLE_LOGPROBS,
                run=run,
                task_id=group.task_id,
                group_id=group.group_id,
                stage=Stage.TRAINING,
            )
            for number, one in enumerate(group.members, first)
            if number in numbers
        ]
        if kept:
            pending.append(replace(group, members=kept).as_trained())
        if len(kept) < len(group.members):
            touched.append(group)
        first = last
    alert = trainer_alert(
        "implausible_logprobs",
        f"{len(rejections)} of {first} trajectories for the step after version {position.version} are rejected: their "
        "recorded log-probabilities cannot be those with which they were sampled; check their source (an engine that "
        "reports other log-probabilities than it samples from, misaligned tokens), or whether events are forged",
        run=run,
        version=position.version,
        severity=Severity.WARNING,
        groups=touched,
        trajectories=[each.trajectory_id for each in rejections[:16]],
    )
    ages = [age_when_rejected(each, position.version) for each in rejections]
    return position.model_copy(
        update={
            "revision": position.revision + 1,
            "pending": pending,
            "rejected_ages": [*position.rejected_ages, *ages],
            "attempts": 0,
            "announcements": [*(announcement(each, run=run) for each in rejections), alert],
        }
    )


def skipped(
    position: Position, groups: Sequence[AdmittedGroup], reason: Reason, why: str, *, run: str, max_skipped: int
) -> Position:
    """Returns the position after ``groups``, all of whose members are rejected with ``reason``; the alert gives
    ``why``.

    The weights stay those of ``position.version``. The alert of the ``max_skipped``-th consecutive skip is critical.
    """
    count = position.skipped + 1
    last = count >= max_skipped
    rejections = [
        rejection(one.member, reason, run=run, task_id=group.task_id, group_id=group.group_id, stage=Stage.TRAINING)
        for group in groups
        for one in group.members
    ]
    alert = trainer_alert(
        "step_skipped",
        f"the step after version {position.version} was skipped ({count} in a row, {max_skipped} stop the trainer) and "
        f"its {len(rejections)} trajectories are rejected as {reason}: {why}; weights and optimiser are those of "
        f"version {position.version}; "
        + ("lower the learning rate or the loss's bounds" if last else "inspect the named groups"),
        run=run,
        version=position.version,
        severity=Severity.CRITICAL if last else Severity.WARNING,
        groups=groups,
        reason=reason,
        skipped=count,
    )
    return position.model_copy(
        update={
            "revision": position.revision + 1,
            "pending": [],
            "rejected_ages": [
                *position.rejected_ages,
                *(age_when_rejected(each, position.version) for each in rejections),
            ],
            "attempts": 0,
            "skipped": count,
            "announcements": [*(announcement(each, run=run) for each in rejections), alert],
        }
    )
