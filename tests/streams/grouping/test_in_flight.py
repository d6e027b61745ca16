"""Records in transit to ``rewards``, on a real broker: none once both groups have processed every record."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.kafka.clients import new_producer, open_producer
from headrace.schemas.topics import EVENTS, REWARDS, TRAJECTORIES, Topic
from headrace.streams.grouping.in_flight import ASSEMBLE_GROUP, SCORE_GROUP, Upstream, read_upstream
from tests.conftest import RunningKafka


async def produced(bootstrap: str, topic: Topic, partition: int, count: int) -> None:
    async with open_producer(bootstrap) as producer:
        for _ in range(count):
            await producer.send_and_wait(topic.name, b"{}", partition=partition)


async def produced_in_a_transaction(bootstrap: str, topic: Topic, partition: int, *, commit: bool) -> None:
    """One record, and its transaction marker."""
    producer = new_producer(bootstrap, transactional_id=f"of-the-test-{partition}")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topic.name, b"{}", partition=partition)
    await (producer.commit_transaction() if commit else producer.abort_transaction())
    await producer.stop()


async def committed(bootstrap: str, group: str, topic: Topic, partition: int, offset: int) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    place = TopicPartition(topic.name, partition)
    consumer.assign([place])
    await consumer.commit({place: offset})
    await consumer.stop()


@pytest.mark.kafka
def test_a_partition_is_drained_where_both_groups_have_taken_every_record(running_kafka: RunningKafka) -> None:
    bootstrap = running_kafka.bootstrap

    async def prepare() -> None:
        # 0: no record ever came. 1: all are processed; the last trajectory is followed by its transaction marker.
        await produced(bootstrap, EVENTS, 1, 2)
        await committed(bootstrap, ASSEMBLE_GROUP, EVENTS, 1, 2)
        await produced_in_a_transaction(bootstrap, TRAJECTORIES, 1, commit=True)
        await committed(bootstrap, SCORE_GROUP, TRAJECTORIES, 1, 1)
        # 2: an event is not assembled. 3: a trajectory is not scored, and score has committed nothing there.
        await produced(bootstrap, EVENTS, 2, 2)
        await committed(bootstrap, ASSEMBLE_GROUP, EVENTS, 2, 1)
        await produced_in_a_transaction(bootstrap, TRAJECTORIES, 3, commit=True)
        await produced(bootstrap, REWARDS, 1, 3)

    async def finish() -> Upstream:
        await committed(bootstrap, ASSEMBLE_GROUP, EVENTS, 2, 2)
        await committed(bootstrap, SCORE_GROUP, TRAJECTORIES, 3, 1)
        # Aborted records are not in transit.
        await produced_in_a_transaction(bootstrap, TRAJECTORIES, 1, commit=False)
        return await read_upstream(bootstrap)

    asyncio.run(prepare())
    found = asyncio.run(read_upstream(bootstrap))
    assert (found.drained, found.ends) == ({0, 1}, {0: 0, 1: 3, 2: 0, 3: 0})
    found = asyncio.run(finish())
    assert found.drained == {0, 1, 2, 3}
