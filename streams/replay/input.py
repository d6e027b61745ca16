"""Finds the range of a replay by times or offsets, and reads it on request: from the log, and from the archive what the
log no longer has.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.archive.archive import Archive
from headrace.schemas.archive.segment import ArchivedRecord
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import AT_ONCE, next_records, partitions_of
from headrace.schemas.side_topics import OffsetRange
from headrace.schemas.topics import Topic
from headrace.streams.raw import LogRecord
from headrace.streams.replay.range import Bound, span_of


async def find_spans(
    bootstrap: str, topic: Topic, begin: Bound | None, end: Bound | None, archive: Archive | None = None
) -> dict[int, OffsetRange]:
    """Returns the range of ``topic`` by partition, from ``begin`` to before ``end``; committed records only.

    With ``archive`` it may begin before the log does. Raises ``LookupError`` if there is no such topic, and
    ``ValueError`` if log and archive do not have the offsets.
    """
    async with open_consumer(bootstrap) as consumer:
        places = await partitions_of(consumer, topic)
        begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        consumer.assign(places)
        starts, stops = await _offsets(consumer, ends, begin), await _offsets(consumer, ends, end)
    if archive is not None:
        log_begins, begins = begins, {place: await archive.begin(place, begins[place]) for place in places}
        starts = await _archived_offsets(archive, begins, log_begins, begin, starts)
        stops = await _archived_offsets(archive, begins, log_begins, end, stops)
    spans = {}
    for place in places:
        try:
            span = span_of(place.partition, begins[place], ends[place], starts, stops)
        except ValueError as error:
            raise ValueError(f"{topic.name}: {error}") from error
        if span is not None:
            spans[place.partition] = span
    return spans


async def _offsets(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], bound: Bound | None
) -> Mapping[int, int] | None:
    """Returns ``bound`` as offsets: of the first record that is not older, or the partition's end."""
    if bound is None or isinstance(bound, Mapping):
        return bound
    found = await consumer.offsets_for_times(dict.fromkeys(ends, bound))
    # The broker also finds markers of transactions, which have wall-clock time: the record itself may be later.
    offsets = {}
    for place, end in ends.items():
        entry = found.get(place)
        offsets[place.partition] = end if entry is None else await _not_older(consumer, place, entry.offset, end, bound)
    return offsets


async def _archived_offsets(
    archive: Archive,
    begins: Mapping[TopicPartition, int],
    log_begins: Mapping[TopicPartition, int],
    bound: Bound | None,
    found: Mapping[int, int] | None,
) -> Mapping[int, int] | None:
    """Returns the offsets of ``bound``, ``found`` in the log, with those in front of the log, if ``bound`` is a
    time.
    """
    if not isinstance(bound, int):
        return found
    offsets = dict(found or {})
    for place, begin in begins.items():
        older = await archive.first_not_older(place, begin, log_begins[place], bound)
        if older is not None:
            offsets[place.partition] = older
    return offsets


async def _not_older(consumer: AIOKafkaConsumer, place: TopicPartition, start: int, end: int, time_ms: int) -> int:
    """Returns the offset of the first record from ``start`` on whose timestamp is at least ``time_ms``, or ``end``."""
    consumer.seek(place, start)
    while await consumer.position(place) < end:
        for record in (await consumer.getmany(place, timeout_ms=500)).get(place, []):
            if record.timestamp >= time_ms:
                return min(int(record.offset), end)
    return end


@asynccontextmanager
async def open_range(
    bootstrap: str, spans: Mapping[TopicPartition, OffsetRange], archive: Archive | None = None
) -> AsyncIterator["RangeReader"]:
    """A reader of ``spans`` with its own consumer; ``archive`` has what the log no longer has."""
    async with open_consumer(bootstrap, auto_offset_reset="none") as consumer:
        begins = {} if archive is None else await consumer.beginning_offsets(list(spans))
        expired = {place: begin for place, begin in begins.items() if spans[place].start < begin}
        archived = (
            {}
            if archive is None
            else {
                place: archive.read(place, spans[place].start, min(spans[place].stop, begin))
                for place, begin in expired.items()
            }
        )
        try:
            yield RangeReader(consumer, spans, expired, archived)
        finally:
            for records in archived.values():
                await records.aclose()


class RangeReader:
    """Reads ranges of partitions, each on request; made by :func:`open_range`.

    Its methods raise :class:`RangeExpired` if retention deletes records of a range before they are read.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        spans: Mapping[TopicPartition, OffsetRange],
        begins: Mapping[TopicPartition, int] | None = None,
        archived: Mapping[TopicPartition, AsyncGenerator[list[ArchivedRecord]]] | None = None,
    ) -> None:
        """``consumer`` is used by this reader only, and does not reset offsets. ``begins``: where the log begins, for
        each of ``archived``: the records before it that are in the range.
        """
        self._consumer = consumer
        self._archived = dict(archived or {})
        self._stops = {place: span.stop for place, span in spans.items()}
        consumer.assign(list(spans))
        for place, span in spans.items():
            consumer.seek(place, max(span.start, (begins or {}).get(place, 0)))

    async def records(self) -> AsyncIterator[LogRecord]:
        """Yields all records in the order in which they are fetched."""
        left = set(self._stops)
        while left:
            for place, (records, is_last) in (await self.read(tuple(left))).items():
                for record in records:
                    yield record
                if is_last:
                    left.discard(place)

    async def read(self, places: Collection[TopicPartition]) -> dict[TopicPartition, tuple[Sequence[LogRecord], bool]]:
        """For each of ``places`` with new information: its next records, and whether they are its last."""
        if archived := [place for place in places if place in self._archived]:
            return await self._read_archived(archived)
        ended = {place for place in places if await self._consumer.position(place) >= self._stops[place]}
        polled = {} if ended else await next_records(self._consumer, places, AT_ONCE)
        found: dict[TopicPartition, tuple[Sequence[LogRecord], bool]] = {}
        for place in places:
            # The position passes transaction markers, which are offsets without a record.
            is_last = place in ended or await self._consumer.position(place) >= self._stops[place]
            records = [record for record in polled.get(place, []) if record.offset < self._stops[place]]
            if records or is_last:
                found[place] = (records, is_last)
        return found

    async def _read_archived(
        self, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[Sequence[LogRecord], bool]]:
        """For each of ``places``: its next records of the archive; its last are found in the log, if only as none."""
        found: dict[TopicPartition, tuple[Sequence[LogRecord], bool]] = {}
        for place in places:
            records = await anext(self._archived[place], None)
            if records is None:
                del self._archived[place]
            else:
                found[place] = (records, False)
        return found
