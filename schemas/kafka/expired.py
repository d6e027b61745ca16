"""Records that retention deletes before a reader reads them: one rule for every reader.

    position 12 ┐                        ┌ log start 40
    ────────────┴── 28 offsets expired ──┴── reading continues here

Only offsets below the log start are expired. Other offsets without a record are not: those of transaction markers, of
aborted transactions, and of records that compaction removed. A reader that loses records counts them, reports them once
(:func:`report_expired`) and continues at the log start; a processor, the sink and the trainer raise an alert, too.
Readers that only need the newest records skip them (:func:`skip_expired`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from aiokafka import TopicPartition

from headrace.schemas.topics import TOPICS

logger = logging.getLogger(__name__)

_WITHOUT_MARKERS: Final = frozenset(topic.name for topic in TOPICS if topic.broker_time)
"""Topics that agents write, without transactions."""


class ExpiredRange(NamedTuple):
    """Offsets of a partition that retention deleted before they were read."""

    place: TopicPartition
    """The partition."""
    position: int
    """The offset that was to be read next: the first of them."""
    begin: int
    """The log start offset, one past the last of them."""

    @property
    def offsets(self) -> int:
        """Their number: records, transaction markers and aborted records."""
        return self.begin - self.position

    def __str__(self) -> str:
        """What happened, and the setting that prevents it."""
        topic, partition = self.place
        return (
            f"{topic}[{partition}] starts at {self.begin}, but was to be read from {self.position} on: retention "
            f"deleted {self.offsets:,} offsets before they were read (records, or markers of transactions). Set "
            f"retention.ms of {topic} above the longest time for which its readers are stopped or behind."
        )


Expired: TypeAlias = Callable[[ExpiredRange], object]
"""Called with offsets that a reader skips because they have expired."""


def expired_range(place: TopicPartition, position: int | None, begin: int) -> ExpiredRange | None:
    """Return the offsets of ``place`` that have expired unread; ``None`` if there are none.

    ``position``: the next offset to read; ``None`` or negative, as Kafka's unknown offset, for a reader that has not
    begun, which loses nothing. ``begin``: the log start offset. In topics that are written in transactions, a single
    offset is taken for the marker after the last record that was read.
    """
    if position is None or position < 0 or position >= begin:
        return None
    if begin - position == 1 and place.topic not in _WITHOUT_MARKERS:
        return None
    return ExpiredRange(place, position, begin)


class ExpiredCounts:
    """The offsets that the readers of a process have lost. No offset of a log is counted twice, however often it is
    found."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._counted_to: dict[tuple[str, str, int], int] = {}

    def add(self, reader: str, expired: ExpiredRange) -> int:
        """Count what ``reader`` has lost; return how many of the offsets were not counted before."""
        key = (reader, *expired.place)
        counted_to = self._counted_to.get(key, 0)
        new = expired.begin - max(expired.position, counted_to)
        if new <= 0:
            return 0
        self._counted_to[key] = expired.begin
        self._counts[key] += new
        return new

    def start_again(self, place: TopicPartition) -> None:
        """Note that the log of ``place`` was replaced or lost its end: its next offsets mean other records, and are
        counted when they are lost.
        """
        for key in [key for key in self._counted_to if key[1:] == tuple(place)]:
            del self._counted_to[key]

    @property
    def by_partition(self) -> Mapping[tuple[str, str, int], int]:
        """Lost offsets by reader, topic and partition."""
        return dict(self._counts)


EXPIRED: Final = ExpiredCounts()
"""The counts of this process, for its metric ``headrace.records.expired``."""


def report_expired(reader: str, expired: ExpiredRange) -> bool:
    """Count and log what ``reader`` has lost; return whether it was not reported before."""
    is_new = EXPIRED.add(reader, expired) > 0
    if is_new:
        logger.error("%s: %s", reader, expired)
    return is_new


def skip_expired(expired: ExpiredRange) -> None:
    """For a reader that only needs the newest records: what has expired is superseded or no longer of interest."""
    logger.debug("skipped: %s", expired)
