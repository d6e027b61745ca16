"""Announcing: what a step says goes to the log in one transaction, once, whatever dies in between.

A checkpoint carries its announcements word for word. After a restart the log itself tells whether they were made: the
version's ``Weights`` record is in the same transaction as everything else.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced

from headrace.schemas.envelope import Envelope, to_headers
from headrace.schemas.ids import derived_id
from headrace.schemas.log import open_producer, read_to_end, send
from headrace.schemas.model import Part, Record
from headrace.schemas.records import Alert, Budget, Rejection, Step, Weights
from headrace.schemas.topics import ALERTS, BUDGET, REJECTED, STEPS, WEIGHTS, Topic, topic_named
from headrace.schemas.wire import Message, UnreadableRecord, decode


class TrainerReplaced(RuntimeError):
    """Another trainer of the same run has taken over."""


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
    """``record`` with the id, key and subject it has whenever it is said; the time is now."""
    topic, id, key = _address(record)
    return Announcement(
        topic=topic.name,
        id=id,
        type=record.TYPE,
        source=f"/trainer/{run}",
        subject=record.trajectory_id if isinstance(record, Rejection) else run,
        key=key,
        time_ms=time.time_ns() // 1_000_000,
        payload=record.model_dump_json(),
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


class Announcer:
    """Writes announcements, all of a call or none."""

    def __init__(self, producer: AIOKafkaProducer, run: str) -> None:
        """Announces through ``producer``, which must be transactional."""
        self._producer = producer
        self._run = run

    async def announce(self, announcements: Sequence[Announcement]) -> None:
        """One transaction. Raises :class:`TrainerReplaced` where another trainer of the run has started."""
        try:
            async with self._producer.transaction():
                waiting = [
                    await send(self._producer, topic_named(each.topic), each.message()) for each in announcements
                ]
                for sent in waiting:
                    await sent
        except ProducerFenced as error:
            raise TrainerReplaced(
                f"another trainer of run {self._run!r} has started: stop one of them or give it another run"
            ) from error


@asynccontextmanager
async def open_announcer(bootstrap: str, run: str) -> AsyncIterator[Announcer]:
    """An announcer of ``run``. Its start ends what a predecessor had begun, and shuts a predecessor out."""
    async with open_producer(bootstrap, transactional_id=f"headrace-trainer-{run}") as producer:
        yield Announcer(producer, run)


async def newest_announced(bootstrap: str, run: str) -> int | None:
    """The newest version of ``run`` that the log knows; ``None`` where it knows none. Reads ``weights`` to its end."""
    newest: int | None = None
    async for record in read_to_end(bootstrap, WEIGHTS):
        try:
            _, payload = decode(record.headers, record.value)
        except UnreadableRecord:
            continue  # nobody's announcement: whoever writes such a record is not a trainer
        if isinstance(payload, Weights) and payload.run == run:
            newest = payload.version if newest is None else max(newest, payload.version)
    return newest
