"""Records that could not be read, and what was done about them."""

from enum import StrEnum
from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from headrace.schemas.model import Record


class DeadLetterError(StrEnum):
    """Why a record could not be read."""

    BAD_JSON = "bad_json"
    BAD_HEADERS = "bad_headers"
    UNKNOWN_TYPE = "unknown_type"
    INVALID = "invalid"
    NULL_VALUE = "null_value"
    OVERSIZE = "oversize"
    LATE = "late"
    BAD_TIME = "bad_time"
    RAISED = "raised"
    CONFLICT = "conflict"
    UNSTORABLE = "unstorable"


class DeadLetter(Record):
    """A record that could not be read, whole: nothing is lost, and it can be repaired and sent again."""

    TYPE: ClassVar[str] = "headrace.record.dead.v1"

    topic: str
    """Where it stood."""
    partition: NonNegativeInt
    """Where it stood."""
    offset: NonNegativeInt
    """Where it stood."""
    error: DeadLetterError
    """What is wrong."""
    message: str
    """What is wrong, in words."""
    key: str | None
    """Original key, base64."""
    value: str | None
    """Original bytes, base64; ``None`` for a null value."""
    headers: list[tuple[str, str | None]]
    """Original headers; values base64."""
    timestamp_ms: int
    """Original timestamp, Unix milliseconds."""
    trajectory_id: str | None = None
    """Trajectory, where it could be told."""


class Repaired(Record):
    """What a person put in the place of a dead letter's original; the latest counts. Nothing is sent by it."""

    TYPE: ClassVar[str] = "headrace.record.repaired.v1"

    topic: str
    """Where the original stood."""
    partition: NonNegativeInt
    """Where the original stood."""
    offset: NonNegativeInt
    """Where the original stood."""
    key: str | None
    """Repaired key, base64."""
    value: str
    """Repaired bytes, base64."""
    headers: list[tuple[str, str | None]]
    """Repaired headers; values base64."""


class Redriven(Record):
    """A dead letter was sent again, as it was or repaired. Each record that was sent names it in a header."""

    TYPE: ClassVar[str] = "headrace.record.redriven.v1"

    topic: str
    """Where the original stood, and where it was sent again."""
    partition: NonNegativeInt
    """Where the original stood."""
    offset: NonNegativeInt
    """Where the original stood."""
    sha256: str
    """Hash of what was sent in the original's place: headers and bytes."""
    trajectory_id: str | None = None
    """Trajectory under which it was sent, where that can be told."""
    redrive_of: str | None = None
    """The closed trajectory that was sent again as a new one; ``None`` where the record was sent alone."""
    records: PositiveInt = 1
    """Records that were sent: all events of a closed trajectory, else one."""
