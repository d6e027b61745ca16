"""Announcing: what a step says goes to the log in one transaction, once, whatever dies in between.

Checkpoints and positions carry their announcements word for word. After a restart the log itself tells whether they
were made: a version's ``Weights`` record is in the same transaction as everything else, and so are the offsets that the
run's consumer group commits, with ``version.revision`` as their metadata. (That group's consumer lag is the trainer's.)
"""

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.envelope import Envelope, to_headers
from headrace.schemas.ids import derived_id
from headrace.schemas.log import committed_offsets, open_consumer, open_producer, partitions_of, read_to_end, send
from headrace.schemas.model import Part, Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, BUDGET, REJECTED, STEPS, TRAINING, WEIGHTS, Topic, topic_named
from headrace.schemas.wire import Message, UnreadableRecord, decode
from headrace.trainer.effects import Effect, Told, tell_nobody


class TrainerReplaced(RuntimeError):
    """Another trainer of the same run has taken over, or the broker gave this one up while it was out of reach."""


class AnnouncementAborted(RuntimeError):
    """The broker did not take an announcement, and nothing of it stands in the log: it can be made again."""


class Said(NamedTuple):
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

    async def announce(
        self,
        announcements: Sequence[Announcement],
        *,
        said: Said | None = None,
        offsets: Mapping[int, int] | None = None,
        told: Told = tell_nobody,
    ) -> None:
        """One transaction: ``announcements``, and ``offsets`` (partition of ``training`` → offset) marked ``said``.

        Raises :class:`AnnouncementAborted` where nothing was announced and it can be tried again,
        :class:`TrainerReplaced` where another trainer of the run has started, aiokafka's error where the log alone
        knows whether it was announced: a restart looks there.
        """
        try:
            await self._producer.begin_transaction()
            told(Effect.BEGUN)
            try:
                await self._send(announcements, said, offsets or {})
            except ProducerFenced:
                raise
            except KafkaError as error:
                await self._producer.abort_transaction()
                raise AnnouncementAborted(f"the broker takes no announcement: {error!r}") from error
            told(Effect.SENT)
            await self._producer.commit_transaction()
        except ProducerFenced as error:
            raise TrainerReplaced(
                f"the broker no longer listens to this trainer of run {self._run!r}: another one has started (stop one "
                "of them, or give it another run), or the broker was out of reach for too long (start it again)"
            ) from error

    async def _send(self, announcements: Sequence[Announcement], said: Said | None, offsets: Mapping[int, int]) -> None:
        waiting = [await send(self._producer, topic_named(each.topic), each.message()) for each in announcements]
        for sent in waiting:
            await sent
        if said is not None and offsets:
            mark = f"{said.version}.{said.revision}"
            places = {
                TopicPartition(TRAINING.name, partition): OffsetAndMetadata(offset, mark)
                for partition, offset in offsets.items()
            }
            await self._producer.send_offsets_to_transaction(places, _group(self._run))


def _group(run: str) -> str:
    return f"headrace-trainer-{run}"


@asynccontextmanager
async def open_announcer(bootstrap: str, run: str) -> AsyncIterator[Announcer]:
    """An announcer of ``run``. Its start ends what a predecessor had begun, and shuts a predecessor out."""
    async with open_producer(bootstrap, transactional_id=_group(run)) as producer:
        yield Announcer(producer, run)


async def newest_said(bootstrap: str, run: str) -> Said | None:
    """What the log knows of ``run``; ``None`` where it knows nothing. Reads ``weights`` to its end.

    The revision is 0 where the broker has forgotten the group's offsets, as it does after a week of rest: what is then
    said again has the ids that it had.
    """
    newest: int | None = None
    async for record in read_to_end(bootstrap, WEIGHTS):
        try:
            _, payload = decode(record.headers, record.value)
        except UnreadableRecord:
            continue  # nobody's announcement: whoever writes such a record is not a trainer
        if isinstance(payload, Weights) and payload.run == run:
            newest = payload.version if newest is None else max(newest, payload.version)
    if newest is None:
        return None
    async with open_consumer(bootstrap) as consumer:
        partitions = await partitions_of(consumer, TRAINING)
    commits = await committed_offsets(bootstrap, _group(run), partitions)
    marks = [_read_mark(commit.metadata) for commit in commits.values()]
    return max([Said(newest), *(mark for mark in marks if mark is not None and mark.version == newest)])


def _read_mark(metadata: str) -> Said | None:
    found = re.fullmatch(r"(\d+)\.(\d+)", metadata or "")
    return Said(int(found[1]), int(found[2])) if found else None
