"""Whether Faust passed over a record. It can, in two races at the end of a rebalance, and then commits past the hole.

What it commits is no guard, so the worker looks itself: the first record after a rebalance must be the first after the
committed offset, and every record must follow the one before. In a topic with transactions one offset between two
records is a marker; behind anything longer the log is asked. A process that finds a hole ends, before it acknowledges
anything behind the hole; its restart reads from the committed offset.
"""

from collections.abc import Mapping
from typing import Any

import faust
from aiokafka import TopicPartition

from headrace.schemas.log import committed_offsets, open_consumer, partitions_of
from headrace.schemas.topics import Topic
from headrace.streams.raw import LogRecord


class Continuity:
    """Watches what one app reads of one topic."""

    def __init__(self, app: faust.App, bootstrap: str, topic: Topic, *, transactional: bool) -> None:
        """``transactional``: the topic's writers use transactions, whose markers are offsets without a record."""
        self._group = str(app.conf.id)
        self._bootstrap = bootstrap
        self._topic = topic
        self._transactional = transactional
        self._expected: dict[int, int] | None = None
        self._heard: set[int] = set()
        app.on_partitions_revoked.connect(self._forget)

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Each partition goes on at its offset in ``offsets``: for an app that knows what it committed."""
        self._expected = dict(offsets)

    def following(self, partition: int) -> int | None:
        """The offset after the last record checked; ``None`` where none was since the last rebalance."""
        return (self._expected or {}).get(partition) if partition in self._heard else None

    async def check(self, record: LogRecord) -> None:
        """Raise ``RuntimeError`` where records before ``record`` were not given to us."""
        if self._expected is None:
            self._expected = await self._committed()
        expected = self._expected.get(record.partition, record.offset)
        marker = self._transactional and record.partition in self._heard and record.offset == expected + 1
        if record.offset > expected and not marker:
            found = await self._first_from(expected, record.partition)
            if found < record.offset:
                raise RuntimeError(
                    f"{record.topic}[{record.partition}] was read up to {expected}, and {record.offset} came where "
                    f"{found} is next: Faust lost records. A restart reads them again from the committed offset."
                )
        self._expected[record.partition] = max(expected, record.offset + 1)
        self._heard.add(record.partition)

    async def _committed(self) -> dict[int, int]:
        async with open_consumer(self._bootstrap) as consumer:
            partitions = await partitions_of(consumer, self._topic)
        commits = await committed_offsets(self._bootstrap, self._group, partitions)
        return {place.partition: at.offset for place, at in commits.items() if at.offset >= 0}

    async def _first_from(self, offset: int, partition: int) -> int:
        """Offset of the first committed record from ``offset`` on: markers, aborted and expired records have none."""
        async with open_consumer(self._bootstrap) as consumer:
            place = TopicPartition(self._topic.name, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return int((await consumer.getone(place)).offset)

    async def _forget(self, *_: Any, **__: Any) -> None:
        self._expected = None
        self._heard.clear()
