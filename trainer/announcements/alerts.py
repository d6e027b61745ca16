"""Alerts of the trainer: what a person should know of, as it stands in the log."""

from collections.abc import Sequence
from typing import Any

from headrace.schemas.records.alert import Alert, Severity
from headrace.trainer.announcements.announcement import Announcement, announcement
from headrace.trainer.batches.batch import AdmittedGroup


def trainer_alert(
    kind: str,
    message: str,
    *,
    run: str,
    version: int,
    severity: Severity = Severity.CRITICAL,
    groups: Sequence[AdmittedGroup] = (),
    **details: Any,
) -> Announcement:
    """What is wrong and what to do; ``version`` is the policy that was trained, ``groups`` those that it was about."""
    alert = Alert(
        run=run,
        source="trainer",
        kind=kind,
        severity=severity,
        message=message,
        details={"version": version, "groups": [group.group_id for group in groups], **details},
    )
    return announcement(alert, run=run)
