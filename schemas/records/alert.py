"""What a person should know of."""

from enum import StrEnum
from typing import Any, ClassVar

from headrace.schemas.model import Record


class Severity(StrEnum):
    """How soon somebody should look."""

    WARNING = "warning"
    CRITICAL = "critical"


class Alert(Record):
    """Something is wrong that a person should know of."""

    TYPE: ClassVar[str] = "headrace.alert.raised.v1"

    run: str
    """Training run; empty where none."""
    source: str
    """Part that noticed."""
    kind: str
    """A stable name: ``canary_mismatch`` …"""
    severity: Severity = Severity.WARNING
    """How soon somebody should look."""
    message: str
    """What is wrong and what to do, in a sentence."""
    details: dict[str, Any] = {}
    """Figures."""
