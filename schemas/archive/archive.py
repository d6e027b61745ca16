"""Reads the archive: what the log had before retention deleted it.

    archive   0 ─────────── 5200 ── 7104 ─ 9000          segments, each named by its first offset
    log                                7900 ────▶        the broker's

A range that the archive lacks in its middle is an error and no empty result: see :class:`NotArchived`.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from headrace.schemas.archive.layout import first_of, folder_of
from headrace.schemas.archive.segment import (
    END_BYTES,
    ArchivedRecord,
    LogPart,
    SegmentSummary,
    SegmentUnreadable,
    read_segment,
    summary_of,
)
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.operator_error import OperatorError

MAX_SEGMENT_BYTES = 256 * 1024**2
"""Largest file that is read, in bytes: at most one is in memory. The archiver's bound keeps files far below it."""


_FOOTERS_AT_ONCE = 16
"""Footers that are read at the same time."""


class NotArchived(OperatorError, LookupError):
    """Offsets that neither the log nor the archive has."""

    def __init__(self, place: TopicPartition, offset: int) -> None:
        """``offset`` of ``place`` is missing."""
        super().__init__(
            f"{place.topic}[{place.partition}] no longer has offset {offset}, and the archive does not have it: "
            "begin the range later (--from), and let `headrace worker archive` run before retention deletes records"
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the archive."""

    path: str
    """Its path in the store."""
    first: int
    """First offset."""
    size: int
    """Size in bytes."""


class Archive:
    """The archive of the topics that a broker has now; see :func:`open_archive`. Listings are read once."""

    def __init__(self, store: ObjectStore, ids: Mapping[str, str]) -> None:
        """``ids``: id of each topic, by name."""
        self._store = store
        self._ids = ids
        self._segments: dict[TopicPartition, list[Segment]] = {}
        self._summaries: dict[str, SegmentSummary] = {}

    async def segments(self, place: TopicPartition) -> Sequence[Segment]:
        """Returns the segments of ``place`` in the order of their offsets. Raises ``StoreUnavailable``."""
        if place not in self._segments:
            found: list[Segment] = []
            if (topic_id := self._ids.get(place.topic)) is not None:
                objects = await self._store.below(folder_of(place.topic, topic_id, place.partition))
                named = ((path, first_of(path), size) for path, size in objects.items())
                found = [Segment(path, first, size) for path, first, size in named if first is not None]
            self._segments[place] = sorted(found, key=lambda segment: segment.first)
        return self._segments[place]

    async def begin(self, place: TopicPartition, log_begin: int) -> int:
        """Returns the first offset from which archive and log together have every record: at most ``log_begin``, where
        the log begins. Raises ``StoreUnavailable``, ``SegmentUnreadable``.
        """
        earlier = [segment for segment in await self.segments(place) if segment.first < log_begin]
        begin = log_begin
        for at in range(len(earlier), 0, -_FOOTERS_AT_ONCE):
            portion = earlier[max(0, at - _FOOTERS_AT_ONCE) : at]
            summaries = await asyncio.gather(*(self.summary(place, segment) for segment in portion))
            for segment, summary in zip(reversed(portion), reversed(summaries), strict=True):
                if summary.part.stop < begin:
                    return begin
                begin = segment.first
        return begin

    async def summary(self, place: TopicPartition, segment: Segment) -> SegmentSummary:
        """Returns what the footer of ``segment`` says. Raises ``StoreUnavailable``, ``SegmentUnreadable``."""
        if segment.path not in self._summaries:
            end = await self._store.read_end(segment.path, segment.size, END_BYTES)
            found = summary_of(end)
            if found.part != self._part(place, segment.first, found.part.stop):
                raise SegmentUnreadable(f"{self._store.uri(segment.path)} holds {found.part}: it was moved or renamed")
            self._summaries[segment.path] = found
        return self._summaries[segment.path]

    async def read(self, place: TopicPartition, start: int, stop: int) -> AsyncGenerator[list[ArchivedRecord]]:
        """Yields the records of ``place`` in ``[start, stop)``, in lists of a few thousand. One file is in memory.

        Raises :class:`NotArchived` at the first offset that the archive lacks, ``StoreUnavailable``, and
        ``SegmentUnreadable`` if a file is damaged.
        """
        position = start
        segments = await self.segments(place)
        while position < stop:
            at = bisect_right([segment.first for segment in segments], position) - 1
            if at < 0:
                raise NotArchived(place, position)
            segment = segments[at]
            part = (await self.summary(place, segment)).part
            if part.stop <= position:
                raise NotArchived(place, position)
            file = await self._store.read(segment.path, max_bytes=MAX_SEGMENT_BYTES)
            for records in read_segment(file, part):
                if wanted := [record for record in records if position <= record.offset < stop]:
                    yield wanted
            position = part.stop

    async def at(self, topic: str, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], ArchivedRecord]:
        """Returns the records at ``places`` (partition, offset) that the archive has; each file is read once."""
        found: dict[tuple[int, int], ArchivedRecord] = {}
        by_segment: dict[tuple[int, int], set[int]] = {}
        for partition, offset in places:
            segments = await self.segments(TopicPartition(topic, partition))
            at = bisect_right([segment.first for segment in segments], offset) - 1
            if at >= 0:
                by_segment.setdefault((partition, at), set()).add(offset)
        for (partition, at), offsets in sorted(by_segment.items()):
            place = TopicPartition(topic, partition)
            segment = (await self.segments(place))[at]
            part = (await self.summary(place, segment)).part
            stop = min(part.stop, max(offsets) + 1)
            if (start := min(offsets)) >= stop:
                continue
            async for records in self.read(place, start, stop):
                found |= {(partition, each.offset): each for each in records if each.offset in offsets}
        return found

    async def first_not_older(self, place: TopicPartition, begin: int, end: int, time_ms: int) -> int | None:
        """Returns the offset of the first record in ``[begin, end)`` whose timestamp is at least ``time_ms`` (Unix);
        ``None`` if there is none. Reads the footers, and one file. Raises as :meth:`read`.
        """
        for segment in await self.segments(place):
            found = await self.summary(place, segment)
            start, stop = max(begin, segment.first), min(end, found.part.stop)
            if start >= stop or found.newest_ms < time_ms:
                continue
            async for records in self.read(place, start, stop):
                for record in records:
                    if record.timestamp >= time_ms:
                        return record.offset
        return None

    def _part(self, place: TopicPartition, first: int, stop: int) -> LogPart:
        return LogPart(place.topic, self._ids[place.topic], place.partition, first, stop)


async def open_archive(url: str, bootstrap: str, topics: Iterable[str]) -> Archive:
    """Returns the archive at ``url`` of ``topics`` of the Kafka at ``bootstrap``.

    Raises ``ValueError`` for an address of another form, ``StoreUnavailable``, and aiokafka's errors.
    """
    return Archive(ObjectStore(url), await topic_ids(bootstrap, list(topics)))
