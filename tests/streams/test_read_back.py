"""Single records are found again where they stand, whatever lies between them."""

import asyncio

import pytest

from headrace.schemas.log import open_producer, send
from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.read_back import READ_OVER, read_back
from tests.streams.attempts import attempt, trajectory_message

COUNT = 6 * READ_OVER


@pytest.mark.kafka
async def test_records_are_read_back_across_gaps_transactions_and_partitions(kafka: str) -> None:
    messages = [trajectory_message(attempt(f"back-{number}")) for number in range(COUNT)]
    async with open_producer(kafka) as producer:
        await asyncio.gather(*[await send(producer, TRAJECTORIES, message, 1) for message in messages])
    offsets = {}
    async with open_producer(kafka, transactional_id="test-read-back") as producer:
        for number, commit in enumerate((True, False, True, True)):
            await producer.begin_transaction()
            offsets[number] = (await (await send(producer, TRAJECTORIES, messages[number], 2))).offset
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    near, far = [0, 1, 2, 7], [COUNT - 100, COUNT - 1]
    found = await read_back(kafka, TRAJECTORIES, {1: [*far, *near, COUNT + 5], 2: offsets.values(), 3: [0]})
    assert [record.offset for record in found[1]] == near + far
    assert [record.key for record in found[1]] == [f"back-{number}".encode() for number in near + far]
    assert [record.offset for record in found[2]] == [offsets[0], offsets[2], offsets[3]]
    assert found[3] == []
