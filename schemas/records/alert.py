"""What a person should know of."""

import math
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import field_validator

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

    @field_validator("details")
    @classmethod
    def _sayable(cls, details: dict[str, Any]) -> dict[str, Any]:
        """A figure that is not finite goes as text: it is often what the alert is about, and JSON has none such."""
        return {name: _sayable(value) for name, value in details.items()}


def _sayable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sayable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
