"""Detects records that Faust lost, which can happen in two races at the end of a rebalance.

The worker checks every record: the first one after a rebalance must be the first one from the committed offset on, and
each must follow the one before. If offsets are missing in between, the client knows whether they held records; if it
does not, the broker is queried. A process that finds a gap ends before it commits anything after the gap; its restart
reads from the committed offset.
"""

from collections.abc import Mapping

import faust
from aiokafka import TopicPartition
from faust.types import TP

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import known_position
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.topics import Topic
from headrace.streams.faust_shell.faust_app import skipped_offsets
from headrace.streams.raw import LogRecord

_POLL_MS = 500
"""Longest wait of a query for a record."""


class Continuity:
    """Checks the records that one app reads of one topic."""

    def __init__(self, app: faust.App, bootstrap: str, topic: Topic) -> None:
        """``bootstrap``: Kafka brokers of ``app``, ``host:port``, comma-separated."""
        self._app = app
        self._bootstrap = bootstrap
        self._topic = topic
        self._skipped = skipped_offsets(app)
        self._expected: dict[int, int] = {}
        self._read_since_rebalance: set[int] = set()

    def begin(self, offsets: Mapping[int, int]) -> None:
        """After a rebalance: each partition must resume with the first record from its offset in ``offsets`` on."""
        self._expected = dict(offsets)

    def end(self) -> None:
        """Before a rebalance: reading stops."""
        for partition in self._expected:
            self._skipped.forget(self._tp(partition))
        self._expected = {}
        self._read_since_rebalance.clear()

    async def is_next(self, record: LogRecord) -> bool:
        """Whether ``record`` was not delivered before; raise ``RuntimeError`` if records before it were not."""
        partition, expected = record.partition, self._expected[record.partition]
        if record.offset == expected and partition in self._read_since_rebalance:
            self._expected[partition] += 1
            return True
        if record.offset < expected:
            return False
        # The client's knowledge starts with the first record after a rebalance, which may itself have been lost.
        known = partition in self._read_since_rebalance and self._skipped.holds_nothing(
            self._tp(partition), expected, record.offset
        )
        if record.offset > expected and not known:
            found = await self._first_from(expected, partition)
            if found < record.offset:
                raise RuntimeError(
                    f"{record.topic}[{partition}] was read up to {expected}, and Faust delivered {record.offset} "
                    f"instead of {found}: it lost records. A restart reads them from the committed offset."
                )
        self._expected[partition] = record.offset + 1
        self._read_since_rebalance.add(partition)
        return True

    async def caught_up(self, partition: int) -> bool:
        """Whether every record of the partition was read and checked, so that the partition is really silent."""
        tp = self._tp(partition)
        ends = await self._app.consumer.highwaters(tp)
        if await self._app.consumer.position(tp) != ends[tp]:
            return False
        last = self._skipped.last(tp)
        return last is None or last < self._expected[partition]

    async def has_taken(self, partition: int, end: int) -> bool:
        """Whether every record of the partition before ``end`` was read and checked."""
        tp = self._tp(partition)
        if self._expected.get(partition, 0) >= end:
            return True
        if partition not in self._expected or (await self._app.consumer.position(tp) or 0) < end:
            return False
        last = self._skipped.last(tp)
        return last is None or last < self._expected[partition]

    async def _first_from(self, offset: int, partition: int) -> int:
        """Returns the offset of the first committed record from ``offset`` on, after markers and aborted records; the
        log end if there is none any more."""
        async with open_consumer(self._bootstrap, on_expired=skip_expired) as consumer:
            place = TopicPartition(self._topic.name, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            end = (await consumer.end_offsets([place]))[place]
            while not (found := await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=1)):
                if (known_position(consumer, place) or 0) >= end:
                    return int(end)
            return int(found[place][0].offset)

    def _tp(self, partition: int) -> TP:
        return TP(self._topic.name, partition)
