"""Skipping a step: what becomes of its groups, and how a person learns of it. Pure."""

from collections.abc import Sequence

from headrace.schemas.records.alert import Severity
from headrace.schemas.records.group import Reason, Stage
from headrace.trainer.admission.admission import age_when_rejected, rejection
from headrace.trainer.alerts import trainer_alert
from headrace.trainer.announce import announcement
from headrace.trainer.batches.batch import AdmittedGroup
from headrace.trainer.checkpoints.position import Position


def skipped(
    position: Position, groups: Sequence[AdmittedGroup], reason: Reason, why: str, *, run: str, max_skipped: int
) -> Position:
    """The position behind ``groups``, every member of which is rejected with ``reason``; ``why`` goes into the alert.

    The weights stay those of ``position.version``. With the ``max_skipped``-th skip in a row the alert is critical.
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
        + ("lower the learning rate or the loss's bounds" if last else "look at the groups that are named"),
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
