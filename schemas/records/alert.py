"""Alerts: problems that need a person's attention."""

import math
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import field_validator

from headrace.schemas.model import Record


class Severity(StrEnum):
    """How urgent an alert is."""

    WARNING = "warning"
    CRITICAL = "critical"


class Alert(Record):
    """A problem that needs a person's attention."""

    TYPE: ClassVar[str] = "headrace.alert.raised.v1"

    run: str
    """Training run; empty if there is none."""
    source: str
    """Component that raised the alert."""
    kind: str
    """A stable name: ``canary_mismatch`` …"""
    severity: Severity = Severity.WARNING
    """How urgent it is."""
    message: str
    """The problem and what to do about it, in a sentence."""
    details: dict[str, Any] = {}
    """Figures."""

    @field_validator("details")
    @classmethod
    def _details_as_json(cls, details: dict[str, Any]) -> dict[str, Any]:
        """Convert numbers that are not finite to text: alerts are often about such numbers, and JSON cannot represent
        them."""
        return {name: _as_json(value) for name, value in details.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
