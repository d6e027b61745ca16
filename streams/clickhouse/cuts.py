"""Which records are inserted together, and how an insert is repeated exactly. Pure.

An insert is exactly-once if it is repeated with the same rows and the same token. The rows of a topic's partitions are
inserted together, because each insert costs ClickHouse about the same whatever its size; so the ranges of offsets of
all of them are committed as metadata of the group's position *before* the insert, at each of its partitions and in one
request. A process that finds such an announcement where it starts repeats that insert first, with all its ranges: those
of partitions that belong to another process now are read, too, and that process repeats the insert as well. Only one of
the inserts is stored, since all have the same token.

    sink A   announces 0:10-19,1:5-9 at partitions 0 and 1, inserts, and is killed before it commits
    sink B   starts partition 0 at 10, finds the announcement, reads 0:10-19 and 1:5-9, repeats the insert (a
             duplicate), commits 20 for partition 0, and continues
    sink C   starts partition 1 at 5, and does the same, with 10 for partition 1

If a process inserts although its partitions have been reassigned, it has announced that before, so that the new owners
repeat it. If retention has deleted the first records of an announced range, the insert is repeated without them, under
the same token. The tables' ReplacingMergeTree is an additional safeguard.

A topic that is deleted and created again starts at offset 0, and the group's commits remain. So tokens and commits name
the topic's id.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from aiokafka import TopicPartition

from headrace.streams.clickhouse.columns import Table

MOST_PARTITIONS = 64
"""Most partitions of an insert: Kafka bounds the metadata of a commit to 4,096 bytes."""


class InsertRange(NamedTuple):
    """Offsets of a partition that are inserted together."""

    partition: int
    """Partition."""
    first: int
    """First offset."""
    end: int
    """One past the last offset."""

    def __str__(self) -> str:
        """``2:7104-7999``, with the last offset."""
        return f"{self.partition}:{self.first}-{self.end - 1}"


_RANGE = re.compile(r"(\d{1,10}):(\d{1,19})-(\d{1,19})")


@dataclass(frozen=True, slots=True)
class PlannedInsert:
    """The rows of these records, inserted into each of their tables at once."""

    topic: str
    """Topic."""
    topic_id: str
    """Its id."""
    ranges: tuple[InsertRange, ...]
    """The records, by partition in ascending order."""

    def token(self, table: Table) -> str:
        """Returns the deduplication token of the insert into ``table``:
        ``events:Zk0dPQ2wT8mAlBZc8sJ6jg:0:790-811,2:7104-7999:events``."""
        return f"{self.topic}:{self.topic_id}:{','.join(map(str, self.ranges))}:{table.name}"

    def place(self, partition: int) -> TopicPartition:
        """Returns the partition of the number ``partition``."""
        return TopicPartition(self.topic, partition)

    def end(self, place: TopicPartition) -> int:
        """Returns one past the last offset of ``place``."""
        return next(each.end for each in self.ranges if each.partition == place.partition)

    def halves(self) -> "tuple[PlannedInsert, PlannedInsert] | None":
        """Returns two inserts of half of the partitions, or half of the offsets of one; ``None`` for a single offset.
        They do not depend on which records exist, so a repeated insert is halved identically.
        """
        middle = len(self.ranges) // 2
        before, after = self.ranges[:middle], self.ranges[middle:]
        if not before:
            ((partition, first, end),) = self.ranges
            if end - first == 1:
                return None
            half = (first + end) // 2
            before, after = (InsertRange(partition, first, half),), (InsertRange(partition, half, end),)
        return replace(self, ranges=before), replace(self, ranges=after)

    def rows_of(self, rows: pa.Table) -> pa.Table:
        """Returns those of ``rows``, which have the columns ``partition`` and ``offset``, that this insert contains."""
        partitions, offsets = (rows.column(name).to_numpy() for name in ("partition", "offset"))
        inside = np.zeros(rows.num_rows, bool)
        for partition, first, end in self.ranges:
            inside |= (partitions == partition) & (offsets >= first) & (offsets < end)
        return rows.filter(pa.array(inside))

    @property
    def places(self) -> list[TopicPartition]:
        """The partitions, in ascending order."""
        return [self.place(each.partition) for each in self.ranges]


def next_cut(first: int, read_to: int, *, size: int, early: bool = False) -> int | None:
    """Returns the end (exclusive) of the batch that starts at offset ``first``; ``None`` while it should still grow.

    ``read_to`` is one past the last record read. ``early`` cuts a batch that is not full. Full batches end at multiples
    of ``size`` offsets.
    """
    if read_to <= first:
        return None
    full = full_end(first, size)
    if read_to >= full:
        return full
    return read_to if early else None


def full_end(first: int, size: int) -> int:
    """Returns the end (exclusive) of a full batch that starts at offset ``first``: the next multiple of ``size``."""
    return (first // size + 1) * size


def planned(
    read: Mapping[TopicPartition, tuple[int, int]], topic_ids: Mapping[TopicPartition, str], most_offsets: int
) -> list[PlannedInsert]:
    """Returns the inserts of what is read of each partition, first offset and end, the smallest first. Partitions of a
    topic are inserted together while they are at most ``most_offsets`` offsets and :data:`MOST_PARTITIONS` partitions;
    what exceeds that begins another insert. ``topic_ids``: a topic that was created again is another one.
    """
    found: list[tuple[tuple[str, str], list[InsertRange]]] = []
    size = 0
    for topic, place in sorted(((place.topic, topic_ids[place]), place) for place in read):
        first, end = read[place]
        size += end - first
        is_full = size > most_offsets or not found or len(found[-1][1]) == MOST_PARTITIONS
        if is_full or found[-1][0] != topic:
            found.append((topic, []))
            size = end - first
        found[-1][1].append(InsertRange(place.partition, first, end))
    inserts = [PlannedInsert(topic, topic_id, tuple(ranges)) for (topic, topic_id), ranges in found]
    return sorted(inserts, key=lambda insert: sum(each.end - each.first for each in insert.ranges))


class CommitMetadata(NamedTuple):
    """Metadata of a commit."""

    topic_id: str = ""
    """Id of the topic that was read; empty if it is unknown."""
    ranges: tuple[InsertRange, ...] = ()
    """The insert that is announced, one range of which starts at the committed offset, or before it if retention has
    deleted its first records since; empty without an announcement."""

    @classmethod
    def parse(cls, text: str) -> "CommitMetadata":
        """Parse metadata. Anything missing or malformed is left empty, older releases' announcements included."""
        fields = dict(word.partition("=")[::2] for word in text.split(" "))
        found = [_RANGE.fullmatch(each) for each in fields.get("inserts", "").split(",")]
        ranges = [InsertRange(int(each[1]), int(each[2]), int(each[3]) + 1) for each in found if each is not None]
        is_valid = len(ranges) == len(found) and all(each.first < each.end for each in ranges)
        return cls(fields.get("topic", ""), tuple(ranges) if is_valid else ())

    def __str__(self) -> str:
        """``topic=Zk0dPQ2wT8mAlBZc8sJ6jg inserts=0:790-811,2:7104-7999``."""
        announced = [f"inserts={','.join(map(str, self.ranges))}"] if self.ranges else []
        return " ".join([f"topic={self.topic_id}", *announced])


def repeatable_end(ranges: tuple[InsertRange, ...], partition: int, committed: int, begin: int, end: int) -> int | None:
    """Returns where the range of ``partition`` among the announced ``ranges`` ends; ``None`` if it is not repeated.

    They were found at the offset ``committed``; the log holds the offsets ``begin`` to ``end``. If it holds nothing of
    the range, or not all of its end, the range cannot be repeated.
    """
    for each in ranges:
        if each.partition == partition and each.first <= committed and max(committed, begin) < each.end <= end:
            return each.end
    return None
