"""Alerts: problems that need a person's attention."""

import math
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, field_validator

from headrace.schemas.bounds import Name, Total, UnixMs
from headrace.schemas.model import Part, Record


class Severity(StrEnum):
    """How urgent an alert is."""

    WARNING = "warning"
    CRITICAL = "critical"


class EpisodeState(StrEnum):
    """State of an episode."""

    OPENED = "opened"
    ONGOING = "ongoing"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class AdmissionOrder(StrEnum):
    """What an alert asks the trainer of its run to do with the trajectories of its agent and task source."""

    NONE = "none"
    """Nothing: the alert only notifies."""
    PAUSE = "pause"
    """Not to admit them until the episode is resolved, or somebody resumes them."""
    RESUME = "resume"
    """To admit them again, although the episode is open."""


class Episode(Part):
    """A time during which a monitor alarms. Each of its alerts states what is known by then; the newest applies."""

    id: Name
    """Names it in commands."""
    monitor: Name
    """The monitor that alarms."""
    state: EpisodeState
    """Its state with this alert."""
    agent: Name = ""
    """Agent; empty if unknown."""
    task_source: Name = ""
    """Task source; empty if the tasks name none."""
    spec: Name = ""
    """Reward spec with its version, or signal of the feedback; empty if the monitor depends on neither."""
    since_version: Total | None = None
    """First policy version of the windows in which the evidence grew; ``None`` if unknown."""
    since_ms: UnixMs
    """Stream time at which the evidence began to grow, Unix milliseconds."""
    strength: NonNegativeFloat = 0.0
    """Evidence, relative to that from which the monitor alarms."""
    examples: list[Name] = []
    """Up to five trajectories that show it best."""
    by: Name = ""
    """Who acknowledged it."""
    admission: AdmissionOrder = AdmissionOrder.NONE
    """What the trainer is asked to do."""


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
    episode: Episode | None = None
    """The episode of a monitor that it belongs to; ``None`` for other problems."""
    runbook: Name = ""
    """Runbook that says how to find the cause: ``headrace runbook NAME`` prints it. Empty if there is none."""

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
