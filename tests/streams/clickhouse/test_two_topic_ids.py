"""A topic was created again: one partition was started again already, another still holds records of the old topic."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import TopicPartition

from headrace.streams.clickhouse.commits import Commit
from headrace.streams.clickhouse.cuts import PlannedInsert
from headrace.streams.clickhouse.pending import Pending, PendingPartitions
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.write_cycle import WriteCycle
from tests.streams.clickhouse.test_sink import event, stored

OLD, NEW = TopicPartition("feedback", 0), TopicPartition("feedback", 1)


class Commits:
    """Partition 1 could not be read on, and was started again: only its id is the new topic's."""

    def topic_id(self, place: TopicPartition) -> str:
        return {OLD: "old", NEW: "new"}[place]

    async def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        pass


class Assigned:
    generation = 0

    async def position(self, place: TopicPartition) -> int:
        return 1


class Writer:
    def __init__(self) -> None:
        self.inserts: list[PlannedInsert] = []

    async def write(self, insert: PlannedInsert, *arguments: Any) -> None:
        self.inserts.append(insert)


async def test_records_of_the_old_topic_and_of_the_new_one_are_not_inserted_under_one_token() -> None:
    """The announcement at a partition names its own topic's id; a repeated insert of the new topic would have another
    token, and read the new topic's records in the old topic's range.
    """
    held, writer = PendingPartitions(), Writer()
    for place in (OLD, NEW):
        held[place] = Pending(0, 1024)
        held[place].add([stored(event("t", 1), 0, "feedback")], 0.0)
    assigned: Any = Assigned()
    held.generation = assigned.generation
    commits: Any = Commits()
    inserting: Any = writer
    async with asyncio.TaskGroup() as tasks:
        cycle = WriteCycle(SinkConfig("", ""), held, assigned, commits, inserting, tasks)
        cycle.write({OLD: 1, NEW: 1})
    ids = {each.partition: insert.topic_id for insert in writer.inserts for each in insert.ranges}
    assert ids == {0: "old", 1: "new"}
