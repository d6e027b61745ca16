"""Records as `headrace tail` shows them: decoded if possible, and also shown if they cannot be decoded."""

from dataclasses import dataclass
from typing import Any

from headrace.schemas.envelope import SUBJECT, TYPE, Envelope, EnvelopeError, from_headers
from headrace.schemas.model import Record
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.raw import LogRecord


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record of a topic, decoded as far as possible."""

    raw: LogRecord
    """The record in the log."""
    envelope: Envelope | None
    """The decoded headers; ``None`` if they are not valid CloudEvents headers."""
    payload: Record | None
    """The decoded value; ``None`` if it cannot be read."""
    error: UnreadableRecord | None = None
    """Why it cannot be read."""

    @property
    def type(self) -> str:
        """The type in the headers; empty if they have none."""
        return self.envelope.type if self.envelope else _header(self.raw, TYPE)

    @property
    def subject(self) -> str:
        """The subject in the headers; empty if they have none."""
        return self.envelope.subject if self.envelope else _header(self.raw, SUBJECT)


def decode_record(raw: LogRecord) -> DecodedRecord:
    """Decode ``raw``; never raises, whatever its content."""
    try:
        envelope, payload = decode(raw.headers, raw.value)
    except UnreadableRecord as error:
        try:
            return DecodedRecord(raw, from_headers(raw.headers), None, error)
        except EnvelopeError:
            return DecodedRecord(raw, None, None, error)
    return DecodedRecord(raw, envelope, payload)


def short_type(name: str) -> str:
    """Returns a type's short name: ``headrace.tool.called.v1`` → ``tool.called``; a version other than 1 is kept."""
    return name.removeprefix("headrace.").removesuffix(".v1")


def trajectories_of(record: DecodedRecord) -> set[str]:
    """Returns the ids of all trajectories that the record is about."""
    found = {record.subject}
    payload = record.payload
    for name in ("trajectory_id", "sub_trajectory_id", "parent_trajectory_id", "redrive_of"):
        found.add(getattr(payload, name, None) or "")
    found.update(member.trajectory_id for member in getattr(payload, "members", ()))
    for group in getattr(payload, "groups", ()):
        found.update(group.trajectory_ids)
    return found - {""}


def label_of(record: DecodedRecord, name: str) -> str | None:
    """Returns ``run`` or ``agent`` of the record or of the start that it contains; ``None`` if it has none."""
    holder: Any = getattr(record.payload, "started", None) or record.payload
    found = getattr(holder, name, None)
    return found if isinstance(found, str) else None


def _header(record: LogRecord, name: str) -> str:
    return (dict(record.headers).get(name) or b"").decode("utf-8", "replace")
