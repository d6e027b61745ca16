"""Alerts of the stream processors, as records of ``alerts``."""

from typing import Any

from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.wire import Message, record_message


def alert_message(
    kind: str,
    message: str,
    *,
    source: str,
    subject: str,
    time_ms: int,
    about: tuple[str | int, ...],
    severity: Severity = Severity.CRITICAL,
    details: dict[str, Any],
) -> Message:
    """Returns an alert of ``source``; ``message`` gives the problem and the remedy. It belongs to no run.

    ``subject`` names its subject for a reader. ``about`` identifies it for the derived id, so that a repeated alert has
    the same id. ``time_ms``: Unix milliseconds.
    """
    alert = Alert(run="", source=source, kind=kind, severity=severity, message=message, details=details)
    return record_message(
        alert,
        id=derived_id(Alert.TYPE, kind, source, *about),
        key="",
        source=source,
        time_ms=time_ms,
        subject=subject,
    )
