"""Reads one partition of ``events``, from the archive and then through librdkafka, and folds it, in portions."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from aiokafka import TopicPartition
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.archive.archive import open_archive
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import RangeExpired
from headrace.schemas.side_topics import OffsetRange
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.raw import LogRecord
from headrace.streams.reading.partition_reader import PartitionReader, open_reader
from headrace.streams.reading.unreadable_batch import unreadable_batch
from headrace.streams.replay.trajectories import Portion, Rederivation

_IDLE_S = 0.002
"""Pause in seconds while nothing has been fetched."""
_RECORDS = 20_000
"""Largest number of records in a portion: progress is reported per portion."""
_ITEMS = 200
"""Largest number of trajectories and dead letters in a portion."""
_BYTES = 2 * 1024 * 1024
"""Size of their payloads from which on a portion is complete; the last event may exceed it."""


async def fold_span(
    bootstrap: str, span: OffsetRange, limits: FoldLimits, archive: str | None = None
) -> AsyncIterator[Portion]:
    """Yields the portions of ``span``, a range of a partition of ``events``; the last one is marked. ``archive``:
    object store with what the log no longer has.

    Raises :class:`RangeExpired`, ``KafkaException`` if the partition cannot be read, and with an archive
    ``NotArchived``, ``SegmentUnreadable`` and ``StoreUnavailable``.
    """
    rederivation = Rederivation(span.partition, limits, begins_log=span.begins_log)
    place = TopicPartition(EVENTS.name, span.partition)
    position = span.start
    if archive is not None:
        begin = min(await log_begin(bootstrap, place), span.stop)
        if position < begin:
            archived = await open_archive(archive, bootstrap, [place.topic])
            async for kept in archived.read(place, position, begin):
                for _ in rederivation.take(kept):
                    if is_full(rederivation):
                        yield rederivation.portion()
                if rederivation.pending.records >= _RECORDS:
                    yield rederivation.portion()
            position = begin
    while position < span.stop:
        async with open_reader(bootstrap, place.topic, place.partition, position) as reader:
            try:
                async for records in _read(reader, span.stop):
                    for _ in rederivation.take(records):
                        if is_full(rederivation):
                            yield rederivation.portion()
                    if rederivation.pending.records >= _RECORDS:
                        yield rederivation.portion()
                position = span.stop
            except KafkaException as error:
                position = reader.position
                if error.args[0].code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise RangeExpired(place, position) from error
                skipped = await unreadable_batch(bootstrap, place, position, error)
                if span.start <= skipped.start < span.stop:
                    rederivation.skip(skipped)
                position = skipped.stop
    yield rederivation.finish()


async def log_begin(bootstrap: str, place: TopicPartition) -> int:
    """Returns the first offset that the log of ``place`` still has."""
    async with open_consumer(bootstrap) as consumer:
        return int((await consumer.beginning_offsets([place]))[place])


def is_full(rederivation: Rederivation) -> bool:
    """Whether its pending portion is complete."""
    return len(rederivation.pending.items) >= _ITEMS or rederivation.pending_bytes >= _BYTES


async def _read(reader: PartitionReader, stop: int) -> AsyncIterator[Sequence[LogRecord]]:
    """Yields lists of records up to the offset ``stop``, exclusive."""
    while reader.position < stop:
        records = reader.read()
        if records and records[-1].offset >= stop:
            records = [record for record in records if record.offset < stop]
        if records:
            yield records
        await asyncio.sleep(0 if records else _IDLE_S)
