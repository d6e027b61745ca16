"""The sink's commits, and the topics that they belong to: one may be deleted, and created again.

aiokafka repeats a commit for a deleted topic for ever. A group's commits survive the deletion, and would be taken for
offsets of a new topic of the same name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, KafkaTimeoutError

from headrace.schemas.kafka.expired import EXPIRED
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.kafka.waits import STOP_S, end_task
from headrace.streams.clickhouse.cuts import CommitMetadata, InsertRange

log = logging.getLogger(__name__)

_COMMIT_S = 2.0
"""Time after which an unfinished commit makes the sink check whether its topics still exist."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What is committed for a partition."""

    offset: int
    """Next offset to write."""
    ranges: tuple[InsertRange, ...] = ()
    """The insert that is announced there; :attr:`CommitMetadata.ranges`."""
    of_deleted: int | None = None
    """Offset that was committed for a deleted topic of the same name."""

    def announced_end(self, partition: int) -> int | None:
        """Returns the end of the range of ``partition`` in the announced insert, if it has one."""
        return next((each.end for each in self.ranges if each.partition == partition), None)


class TopicCommits:
    """Commits of one consumer group, for the partitions that were read last."""

    def __init__(
        self, bootstrap: str, group: str, consumer: AIOKafkaConsumer, deleted: Callable[[str, str], Awaitable[None]]
    ) -> None:
        """``consumer`` is the group's member. ``deleted`` is called once with the name and the id of each topic that is
        found to be deleted.
        """
        self._bootstrap = bootstrap
        self._group = group
        self._consumer = consumer
        self._on_deleted = deleted
        self._ids: dict[TopicPartition, str] = {}
        self._known: dict[str, str] = {}  # ids by topic, assigned or not: a rebalance takes deleted topics away
        self._deleted: set[TopicPartition] = set()
        self._recreated: set[TopicPartition] = set()
        self._reported: set[tuple[str, str]] = set()
        self._reads = 0  # what was found about partitions before the last one may no longer hold

    def topic_id(self, place: TopicPartition) -> str:
        """Returns the id of the topic that ``place`` is read from."""
        return self._ids[place]

    def places(self) -> list[TopicPartition]:
        """Returns the partitions that were read last and whose topics are not known to be deleted."""
        return [place for place in self._ids if place not in self._deleted]

    def clear(self) -> None:
        """Forget all partitions."""
        self._reads += 1
        for places in (self._ids, self._deleted, self._recreated):
            places.clear()

    async def read(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Commit]:
        """Returns the commits for those of ``places`` whose topics exist; offset −1 if nothing was committed for the
        topic. Raises aiokafka's errors if Kafka does not answer.
        """
        ids = await topic_ids(self._bootstrap, {place.topic for place in places} | self._known.keys())
        committed = await committed_offsets(self._bootstrap, self._group, places)
        self._reads += 1
        for topic in self._known.keys() - ids.keys():
            await self._report_deleted(topic)
        for place in places:
            if self._known.get(place.topic) not in (None, ids.get(place.topic)):
                EXPIRED.start_again(place)
        self._known |= ids
        found = {}
        for place in places:
            self._recreated.discard(place)
            self._deleted.discard(place)
            if place.topic not in ids:
                await self._set_deleted(place)
                continue
            offset, metadata = committed[place].offset, CommitMetadata.parse(committed[place].metadata or "")
            self._ids[place] = ids[place.topic]
            if metadata.topic_id in ("", ids[place.topic]):
                found[place] = Commit(offset, metadata.ranges)
            else:
                found[place] = Commit(-1, of_deleted=offset)
        return found

    async def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        """Commit, except for deleted topics; waits while Kafka does not answer. Raises aiokafka's errors, for example
        if a partition was reassigned.
        """
        while left := {
            place: (commit.offset, str(CommitMetadata(self._ids[place], commit.ranges)))
            for place, commit in commits.items()
            if place not in self._deleted
        }:
            committing = asyncio.ensure_future(self._consumer.commit(left))
            try:
                while not self._deleted & left.keys():
                    if (await asyncio.wait({committing}, timeout=_COMMIT_S))[0]:
                        committing.result()
                        return
                    await self.look_at_topics()
            finally:
                await end_task(committing, STOP_S)

    async def look_at_topics(self) -> None:
        """Notice topics that were deleted or created again since they were read. While Kafka does not answer, nothing
        is noticed.
        """
        reads = self._reads
        places = {*self._ids, *self._deleted}
        try:
            ids = await topic_ids(self._bootstrap, {place.topic for place in places})
        except KafkaTimeoutError as error:
            log.info("the topics' ids are unknown: %s", error)
            return
        if reads != self._reads:
            return
        for place in places:
            if place.topic not in ids:
                await self._set_deleted(place)
            elif place in self._deleted or ids[place.topic] != self._ids[place]:
                self._recreated.add(place)

    def take_recreated(self) -> set[TopicPartition]:
        """Returns the partitions whose topic was created again since the last call: each must be read again."""
        found, self._recreated = self._recreated, set()
        return found

    async def _set_deleted(self, place: TopicPartition) -> None:
        self._deleted.add(place)
        await self._report_deleted(place.topic)

    async def _report_deleted(self, topic: str) -> None:
        topic_id = self._known.get(topic, "")
        if (topic, topic_id) in self._reported:
            return
        self._reported.add((topic, topic_id))
        try:
            await self._on_deleted(topic, topic_id)
        except KafkaError as error:
            log.warning("the alert about the deleted topic %s was not sent: %s", topic, error)
