"""A record as `headrace tail` sees it: decoded where it can be, and shown all the same where it cannot."""

from dataclasses import dataclass
from typing import Any

from headrace.schemas.envelope import SUBJECT, TYPE, Envelope, EnvelopeError, from_headers
from headrace.schemas.model import Record
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.raw import LogRecord


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of a topic."""

    raw: LogRecord
    """As it stands in the log."""
    envelope: Envelope | None
    """What its headers say; ``None`` where they are not CloudEvents."""
    payload: Record | None
    """What its value says; ``None`` where it cannot be read."""
    error: UnreadableRecord | None = None
    """Why it cannot be read."""

    @property
    def type(self) -> str:
        """Its type, as far as the headers tell; empty without one."""
        return self.envelope.type if self.envelope else _header(self.raw, TYPE)

    @property
    def subject(self) -> str:
        """What it is about, as far as the headers tell; empty where they do not."""
        return self.envelope.subject if self.envelope else _header(self.raw, SUBJECT)


def see(record: LogRecord) -> Seen:
    """Decode ``record``; never raises for what is in it."""
    try:
        envelope, payload = decode(record.headers, record.value)
    except UnreadableRecord as error:
        try:
            return Seen(record, from_headers(record.headers), None, error)
        except EnvelopeError:
            return Seen(record, None, None, error)
    return Seen(record, envelope, payload)


def short_type(name: str) -> str:
    """``headrace.tool.called.v1`` → ``tool.called``; a version other than 1 stays."""
    return name.removeprefix("headrace.").removesuffix(".v1")


def trajectories_of(seen: Seen) -> set[str]:
    """Ids of all trajectories that the record is about."""
    found = {seen.subject}
    payload = seen.payload
    for name in ("trajectory_id", "sub_trajectory_id", "parent_trajectory_id", "redrive_of"):
        found.add(getattr(payload, name, None) or "")
    found.update(member.trajectory_id for member in getattr(payload, "members", ()))
    for group in getattr(payload, "groups", ()):
        found.update(group.trajectory_ids)
    return found - {""}


def label_of(seen: Seen, name: str) -> str | None:
    """``run`` or ``agent`` of the record, its own or that of the trajectory's start; ``None`` where it has none."""
    holder: Any = getattr(seen.payload, "started", None) or seen.payload
    found = getattr(holder, name, None)
    return found if isinstance(found, str) else None


def _header(record: LogRecord, name: str) -> str:
    return (dict(record.headers).get(name) or b"").decode("utf-8", "replace")
