"""Single records are read back by offset, whatever lies between them."""

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.read_back import READ_OVER, contiguous_ranges, read_back
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TRAJECTORIES
from tests.streams.attempts import attempt, trajectory_message

COUNT = 6 * READ_OVER


@pytest.mark.parametrize(
    ("offsets", "gap", "ranges"),
    [
        ([], 5, []),
        ([7], 5, [(7, 7)]),
        ([3, 1, 2, 2], 0, [(1, 3)]),
        ([1, 4], 1, [(1, 1), (4, 4)]),
        ([1, 4], 2, [(1, 4)]),
        ([10, 500, 11, 502], 5, [(10, 11), (500, 502)]),
    ],
)
def test_offsets_are_merged_into_few_ranges(offsets: list[int], gap: int, ranges: list[tuple[int, int]]) -> None:
    assert contiguous_ranges(offsets, gap) == ranges


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
    wanted = {1: [*far, *near, COUNT + 5], 2: offsets.values(), 3: [0]}
    found = await read_back(kafka, TRAJECTORIES, [(partition, at) for partition in wanted for at in wanted[partition]])
    assert list(found) == [*((1, offset) for offset in near + far), *((2, offsets[number]) for number in (0, 2, 3))]
    assert [found[1, number].key for number in near + far] == [f"back-{number}".encode() for number in near + far]


@pytest.mark.kafka
async def test_expired_records_are_left_out(kafka: str) -> None:
    messages = [trajectory_message(attempt(f"gone-{number}")) for number in range(20)]
    async with open_producer(kafka) as producer:
        first = (await (await send(producer, TRAJECTORIES, messages[0], 0))).offset
        await asyncio.gather(*[await send(producer, TRAJECTORIES, message, 0) for message in messages[1:]])
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.delete_records({TopicPartition(TRAJECTORIES.name, 0): RecordsToDelete(before_offset=first + 10)})
    await admin.close()
    kept = first + 15
    assert list(await read_back(kafka, TRAJECTORIES, [(0, first), (0, first + 2), (0, kept)])) == [(0, kept)]
    assert await read_back(kafka, TRAJECTORIES, [(0, first)]) == {}
