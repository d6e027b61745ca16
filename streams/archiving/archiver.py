"""Copies topics into the archive, as segments: Parquet files of offset ranges in the object store.

    log        7104 ───────── 7900 ── 8400        once 7104 is an hour old, or a file's records wait
    archive    …/partition=0/00000000000000007104.parquet        offsets 7104 to before 8400

The archive is its own state: where a partition's last segment stops, the next one begins, in this process or another.
The store creates an object once, so of two processes one wins each segment and the other adopts its range. One file is
in memory, however many partitions wait.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from headrace.schemas.archive.archive import Archive
from headrace.schemas.archive.layout import folder_of, path_of
from headrace.schemas.archive.segment import LogPart, SegmentUnreadable, to_parquet
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import expired_range
from headrace.schemas.kafka.reading import AT_ONCE, KafkaRecord, RangeExpired, Stall, next_records, partitions_of
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.objects.unavailable import StoreUnavailable, StoreUnsuitable
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import topic_named
from headrace.streams.archiving.config import ArchiveConfig
from headrace.streams.lost_offset import expired_alert, publish

logger = logging.getLogger(__name__)

SOURCE = "archive"
"""Name of the archiver in alerts and logs."""
FIRST_PAUSE_S = 0.5
"""First pause in seconds after a failure; each further one is twice as long."""


class ArchiveRefused(OperatorError, RuntimeError):
    """The store cannot hold an archive."""


@dataclass(slots=True)
class Progress:
    """How far a partition is archived."""

    topic_id: str
    """Id of the topic."""
    first: int
    """First offset of the next segment."""
    waiting_since: float | None = None
    """When offsets that are not archived yet were first seen, in seconds of the archiver's clock."""
    is_ahead: bool = False
    """Whether the log ends before what is archived of it."""


def is_due(waiting: int, waited_s: float, config: ArchiveConfig) -> bool:
    """Whether ``waiting`` offsets, the first of which was seen ``waited_s`` seconds ago, are archived now."""
    return waiting > 0 and (waiting >= config.file_records or waited_s >= config.interval_s)


def bytes_of(record: KafkaRecord) -> int:
    """Returns the size of key, payload and headers in bytes."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


async def run_archiver(config: ArchiveConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Archive until ``stop`` is set; ``ready`` is called once the topics and the store were read.

    While Kafka or the store does not answer, it tries again, at ever longer pauses. Raises :class:`ArchiveRefused` if
    the store overwrites objects, and ``TopicsError`` if a topic does not exist.
    """
    pause_s, started = FIRST_PAUSE_S, False
    while not stop.is_set():
        try:
            archiver = Archiver(config, ObjectStore(config.store_url))
            async with open_log(config.bootstrap) as log:
                while not stop.is_set():
                    await archiver.turn(log, stop)
                    pause_s = FIRST_PAUSE_S
                    if not started:
                        started = True
                        ready()
                    await _pause(stop, config.check_s)
        except StoreUnsuitable as error:
            raise ArchiveRefused(f"{error}") from error
        except (KafkaError, StoreUnavailable) as error:
            pause_s = min(pause_s, config.retry_most_s)
            logger.warning("nothing is archived, next attempt in %.1f s: %s", pause_s, error)
            await _pause(stop, pause_s)
            pause_s *= 2


class Log(NamedTuple):
    """Two consumers of the log, since one that is assigned a partition knows only that partition's topic."""

    ends: ReportingConsumer
    """Finds partitions and where they begin and end; is never assigned any."""
    records: ReportingConsumer
    """Reads one partition at a time, and does not reset offsets."""


@asynccontextmanager
async def open_log(bootstrap: str) -> AsyncIterator[Log]:
    """Open the log of ``bootstrap``."""
    async with (
        open_consumer(bootstrap) as ends,
        open_consumer(bootstrap, auto_offset_reset="none") as records,
    ):
        yield Log(ends, records)


class Archiver:
    """Archives what is due, turn by turn."""

    def __init__(self, config: ArchiveConfig, store: ObjectStore, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._config = config
        self._store = store
        self._clock = clock
        self._progress: dict[TopicPartition, Progress] = {}

    async def turn(self, log: Log, stop: asyncio.Event) -> int:
        """Archive what is due of every partition, or until ``stop`` is set; returns the number of new segments.

        Raises aiokafka's errors, ``StoreUnavailable``, ``StoreUnsuitable`` and ``TopicsError``. A partition whose
        newest segment is damaged is left out, and logged.
        """
        ids = await topic_ids(self._config.bootstrap, self._config.topics)
        made = 0
        for name in self._config.topics:
            places = await partitions_of(log.ends, topic_named(name))
            begins, ends = await log.ends.beginning_offsets(places), await log.ends.end_offsets(places)
            for place in places:
                try:
                    while not stop.is_set() and await self._archive(log.records, place, ids[name], begins, ends):
                        made += 1
                except SegmentUnreadable as error:
                    logger.error("%s[%d] is not archived: %s", *place, error)
                except RangeExpired as error:  # the next turn reads where the log begins now
                    logger.warning("%s", error)
        return made

    async def _archive(
        self,
        consumer: ReportingConsumer,
        place: TopicPartition,
        topic_id: str,
        begins: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
    ) -> bool:
        """Write the next segment of ``place`` if it is due; returns whether there may be another one."""
        begin, end = begins[place], ends[place]
        progress = await self._progress_of(place, topic_id, begin)
        if (expired := expired_range(place, progress.first, begin)) is not None:
            await publish(self._config.bootstrap, expired_alert(SOURCE, expired))
            progress.first = begin
        if progress.first > end and not progress.is_ahead:
            logger.error(
                "%s[%d] ends at %d, but is archived up to %d: its broker lost records; offsets in between mean other "
                "records now, and are not archived again",
                *place, end, progress.first,
            )  # fmt: skip
        progress.is_ahead = progress.first > end
        waiting = end - max(progress.first, begin)
        if waiting <= 0:
            progress.waiting_since = None
            return False
        now = self._clock()
        if progress.waiting_since is None:
            progress.waiting_since = now
        if not is_due(waiting, now - progress.waiting_since, self._config):
            return False
        records, stop = await self._read(consumer, place, max(progress.first, begin), end)
        # Without records, too, if only marks of transactions wait: a range that no file covers would be a gap.
        part = LogPart(place.topic, topic_id, place.partition, progress.first, stop)
        path = path_of(part.topic, part.topic_id, part.partition, part.first)
        file = await asyncio.to_thread(to_parquet, part, records)
        if await self._store.create_if_absent(path, file):
            logger.info("archived %s: %d records, %d bytes", path, len(records), len(file))
            progress.first = stop
        else:  # another archiver was first
            progress.first = (await self._stored(place, topic_id)) or progress.first
        if progress.first >= end:
            progress.waiting_since = None
        return True

    async def _progress_of(self, place: TopicPartition, topic_id: str, begin: int) -> Progress:
        known = self._progress.get(place)
        if known is None or known.topic_id != topic_id:
            stored = await self._stored(place, topic_id)
            known = self._progress[place] = Progress(topic_id, begin if stored is None else stored)
        return known

    async def _stored(self, place: TopicPartition, topic_id: str) -> int | None:
        """Returns where the last segment of ``place`` stops; ``None`` if there is none."""
        archive = Archive(self._store, {place.topic: topic_id})
        segments = await archive.segments(place)
        if not segments:
            logger.info("the archive has nothing of %s yet", folder_of(place.topic, topic_id, place.partition))
            return None
        return (await archive.summary(place, segments[-1])).part.stop

    async def _read(
        self, consumer: ReportingConsumer, place: TopicPartition, start: int, end: int
    ) -> tuple[list[KafkaRecord], int]:
        """Returns the records from ``start`` on, as many as a file takes, and the first offset after them.

        Before ``end``, the last stable offset, no transaction is open: an offset without a record will never have one.
        """
        if consumer.assignment() != {place}:
            consumer.assign([place])
            consumer.seek(place, start)
        elif await consumer.position(place) != start:  # a seek drops what was fetched
            consumer.seek(place, start)
        records: list[KafkaRecord] = []
        size, stall = 0, Stall()
        most = self._config.file_mb * 1024**2
        while (position := await consumer.position(place)) < end:
            stall.moved_to(position)
            wanted = min(AT_ONCE, self._config.file_records - len(records))
            for record in (await next_records(consumer, [place], wanted)).get(place, ()):
                if record.offset >= end:
                    break
                records.append(record)
                size += bytes_of(record)
                if len(records) >= self._config.file_records or size >= most:
                    return records, record.offset + 1
        return records, end


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
