"""Committed offsets on a topic that is written in transactions."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TRAJECTORIES
from headrace.schemas.wire import Message
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.test_workers import until, worker

pytestmark = pytest.mark.kafka

PARTITION = TopicPartition(TRAJECTORIES.name, 0)


def commit_each(bootstrap: str, transactions: list[list[Message]]) -> None:
    async def run() -> None:
        async with open_producer(bootstrap, transactional_id="assemble") as producer:
            for messages in transactions:
                async with producer.transaction():
                    for message in messages:
                        await send(producer, TRAJECTORIES, message, partition=0)

    asyncio.run(run())


def committed(bootstrap: str, group: str) -> int:
    async def run() -> int:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(group)
            return offsets[PARTITION].offset if PARTITION in offsets else -1
        finally:
            await admin.close()

    return asyncio.run(run())


def test_committed_offsets_keep_up_with_transactions_that_come_while_it_works(kafka: str, tmp_path: Path) -> None:
    transactions = [[trajectory_message(attempt(f"t{number}", group=None))] for number in range(200)]
    with worker(kafka, tmp_path, processors=["score"]) as child:
        commit_each(kafka, transactions)
        # Every record is followed by its transaction's marker.
        until(lambda: committed(kafka, "headrace-score") == 399, "the last record's offset", child.log, within_s=20)
