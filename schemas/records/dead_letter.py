"""Dead letters: records that could not be processed, and what was done about them."""

from enum import StrEnum
from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from headrace.schemas.model import Record


class DeadLetterError(StrEnum):
    """Why a record could not be processed."""

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
    """A complete copy of a record that could not be processed. It can be repaired and redriven."""

    TYPE: ClassVar[str] = "headrace.record.dead.v1"

    topic: str
    """Topic of the original record."""
    partition: NonNegativeInt
    """Partition of the original record."""
    offset: NonNegativeInt
    """Offset of the original record."""
    error: DeadLetterError
    """Kind of error."""
    message: str
    """Description of the error."""
    key: str | None
    """Original key, base64."""
    value: str | None
    """Original bytes, base64; ``None`` for a null value."""
    headers: list[tuple[str, str | None]]
    """Original headers; values base64."""
    timestamp_ms: int
    """Original timestamp, Unix milliseconds."""
    trajectory_id: str | None = None
    """Trajectory, if it could be determined."""


class Repaired(Record):
    """A person's replacement for the original record of a dead letter.

    The latest repair counts. A repair alone sends nothing.
    """

    TYPE: ClassVar[str] = "headrace.record.repaired.v1"

    topic: str
    """Topic of the original record."""
    partition: NonNegativeInt
    """Partition of the original record."""
    offset: NonNegativeInt
    """Offset of the original record."""
    key: str | None
    """Repaired key, base64."""
    value: str
    """Repaired bytes, base64."""
    headers: list[tuple[str, str | None]]
    """Repaired headers; values base64."""


class Redriven(Record):
    """A dead letter was redriven, unchanged or repaired.

    A header of each record that was sent refers to the dead letter.
    """

    TYPE: ClassVar[str] = "headrace.record.redriven.v1"

    topic: str
    """Topic of the original record, to which it was sent again."""
    partition: NonNegativeInt
    """Partition of the original record."""
    offset: NonNegativeInt
    """Offset of the original record."""
    sha256: str
    """Hash of the headers and bytes that were sent in place of the original."""
    trajectory_id: str | None = None
    """Trajectory under which it was sent, if it could be determined."""
    redrive_of: str | None = None
    """The closed trajectory that was redriven as a new one; ``None`` if the record was sent alone."""
    records: PositiveInt = 1
    """Number of records that were sent: all events of a closed trajectory, otherwise one."""
