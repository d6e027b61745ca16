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
    """What ``source`` says is wrong and what to do. It belongs to no run.

    ``subject`` is what it is about, for a reader; ``about`` the same for the id: said again, it is the same record.
    ``time_ms``: Unix milliseconds.
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
