"""Whether Faust passed over a record. It can, in two races at the end of a rebalance.

The worker looks itself: the first record after a rebalance must be the first after the committed offset, and every
record must follow the one before. Where offsets are left out in between, the client says whether it found records
there; where it cannot say, the log is asked. A process that finds a hole ends, before it settles anything behind the
hole; its restart reads from the committed offset.
"""

from collections.abc import Mapping

import faust
from aiokafka import TopicPartition
from faust.types import TP

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.topics import Topic
from headrace.streams.faust_shell.faust_app import passed_over
from headrace.streams.raw import LogRecord


class Continuity:
    """Watches what one app reads of one topic."""

    def __init__(self, app: faust.App, bootstrap: str, topic: Topic) -> None:
        """Of an app on the Kafka at ``bootstrap``."""
        self._app = app
        self._bootstrap = bootstrap
        self._topic = topic
        self._passed_over = passed_over(app)
        self._expected: dict[int, int] = {}
        self._heard: set[int] = set()

    def begin(self, offsets: Mapping[int, int]) -> None:
        """After a rebalance: each partition goes on with the first record from its offset in ``offsets`` on."""
        self._expected = dict(offsets)

    def end(self) -> None:
        """Before a rebalance: nothing is read any more."""
        for partition in self._expected:
            self._passed_over.forget(self._tp(partition))
        self._expected = {}
        self._heard.clear()

    async def check(self, record: LogRecord) -> None:
        """Raise ``RuntimeError`` where records before ``record`` were not given to us."""
        partition, expected = record.partition, self._expected[record.partition]
        # Only what the client read since the last rebalance counts; the first record may have been lost itself.
        known = partition in self._heard and self._passed_over.holds_nothing(
            self._tp(partition), expected, record.offset
        )
        if record.offset > expected and not known:
            found = await self._first_from(expected, partition)
            if found < record.offset:
                raise RuntimeError(
                    f"{record.topic}[{partition}] was read up to {expected}, and {record.offset} came where "
                    f"{found} is next: Faust lost records. A restart reads them again from the committed offset."
                )
        self._expected[partition] = max(expected, record.offset + 1)
        self._heard.add(partition)

    async def caught_up(self, partition: int) -> bool:
        """Whether nothing in the partition waits to be read or checked: then silence means that nothing came."""
        tp = self._tp(partition)
        ends = await self._app.consumer.highwaters(tp)
        if await self._app.consumer.position(tp) != ends[tp]:
            return False
        last = self._passed_over.last(tp)
        return last is None or last < self._expected[partition]

    async def has_taken(self, partition: int, end: int) -> bool:
        """Whether every record of the partition before ``end`` was read and checked."""
        tp = self._tp(partition)
        if self._expected.get(partition, 0) >= end:
            return True
        if partition not in self._expected or (await self._app.consumer.position(tp) or 0) < end:
            return False
        last = self._passed_over.last(tp)
        return last is None or last < self._expected[partition]

    async def _first_from(self, offset: int, partition: int) -> int:
        """Offset of the first committed record from ``offset`` on: markers, aborted and expired records have none."""
        async with open_consumer(self._bootstrap) as consumer:
            place = TopicPartition(self._topic.name, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return int((await consumer.getone(place)).offset)

    def _tp(self, partition: int) -> TP:
        return TP(self._topic.name, partition)
