"""Announcements: records that the trainer decided to publish, as the bytes that are published.

Checkpoints and positions store them, so that a restarted trainer publishes the same bytes under the same ids (a
transactional outbox). :mod:`headrace.trainer.publishing` sends them.
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
    """What the log knows of a run."""

    version: int
    """Newest policy version."""
    revision: int = 0
    """Position of the trainer since (see ``checkpoints.position``)."""


class Announcement(Part):
    """A record that is to stand in the log, as bytes that no longer change."""

    topic: str
    """Topic."""
    id: str
    """Derived id."""
    type: str
    """Type of the payload."""
    source: str
    """Who says it."""
    subject: str
    """What it is about."""
    key: str
    """Kafka key."""
    time_ms: int
    """When it was decided, Unix milliseconds."""
    payload: str
    """The record as JSON."""

    def message(self) -> Message:
        """The announcement as Kafka takes it."""
        envelope = Envelope(self.id, self.type, self.source, self.time_ms, self.subject)
        return Message(self.key.encode(), self.payload.encode(), to_headers(envelope))


def announcement(record: Step | Weights | Budget | Rejection | Alert, *, run: str) -> Announcement:
    """``record`` with the id, key and subject it has whenever it is said; the time is now.

    Raises :class:`NotFinite` where it holds a number that is not finite.
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
