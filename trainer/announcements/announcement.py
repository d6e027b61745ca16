"""Announcements: records that the trainer has decided to publish, as the bytes to be published.

Checkpoints and positions store them, so that a restarted trainer publishes the same bytes under the same ids (a
transactional outbox). :mod:`headrace.trainer.publishing` publishes them.
"""

import time
from typing import NamedTuple

from headrace.schemas.envelope import Envelope, to_headers
from headrace.schemas.finite import refuse_not_finite
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Part, Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, BUDGET, REJECTED, STEPS, WEIGHTS, Topic
from headrace.schemas.wire import Message


class PublishedPosition(NamedTuple):
    """The last position of a run that was published to the log."""

    version: int
    """Newest policy version."""
    revision: int = 0
    """Position of the trainer since that version (see ``checkpoints.position``)."""


class Announcement(Part):
    """A record to be published, as bytes that no longer change."""

    topic: str
    """Topic."""
    id: str
    """Derived id."""
    type: str
    """Type of the payload."""
    source: str
    """CloudEvents source: the producer."""
    subject: str
    """What it is about."""
    key: str
    """Kafka key."""
    time_ms: int
    """When it was decided, Unix milliseconds."""
    payload: str
    """The record as JSON."""

    def message(self) -> Message:
        """Returns the announcement as a Kafka message."""
        envelope = Envelope(self.id, self.type, self.source, self.time_ms, self.subject)
        return Message(self.key.encode(), self.payload.encode(), to_headers(envelope))


def announcement(record: Step | Weights | Budget | Rejection | Alert, *, run: str) -> Announcement:
    """Returns ``record`` as an announcement dated now; id, key and subject follow from the record alone.

    Raises :class:`NotFinite` if it holds a number that is not finite.
    """
    topic, id, key = _address(record)
    payload = record.model_dump_json()
    refuse_not_finite(payload.encode())
    return Announcement(
        topic=topic.name,
        id=id,
        type=record.TYPE,
        source=f"/trainer/{run}",
        subject=record.trajectory_id if isinstance(record, Rejection) else run,
        key=key,
        time_ms=time.time_ns() // 1_000_000,
        payload=payload,
    )


def _address(record: Record) -> tuple[Topic, str, str]:
    match record:
        case Step():
            return STEPS, derived_id(record.TYPE, record.run, record.step), record.run
        case Weights():
            return WEIGHTS, derived_id(record.TYPE, record.run, record.version), record.run
        case Budget():
            granted = (record.version, record.groups_per_step, record.max_steps_ahead, record.max_groups)
            return BUDGET, derived_id(record.TYPE, record.run, *granted), record.run
        case Rejection():
            return REJECTED, derived_id(record.TYPE, record.stage, record.trajectory_id), record.trajectory_id
        case Alert():
            return ALERTS, derived_id(record.TYPE, record.run, record.kind, record.message), record.run
    raise TypeError(f"the trainer does not announce {record.TYPE}")
