"""Alerts that the trainer publishes for its operators."""

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
    """Returns an alert of ``kind`` while policy ``version`` is trained; ``groups`` are the affected ones.

    ``message`` names the problem and the remedy.
    """
    alert = Alert(
        run=run,
        source="trainer",
        kind=kind,
        severity=severity,
        message=message,
        details={"version": version, "groups": [group.group_id for group in groups], **details},
    )
    return announcement(alert, run=run)
