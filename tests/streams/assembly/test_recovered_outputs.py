"""What a predecessor wrote is taken as written, markers or not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import TopicPartition

from headrace.schemas.log import open_producer, read_to_end, send
from headrace.schemas.topics import EVENTS, TRAJECTORIES
from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.recovered_outputs import recovered_outputs
from headrace.streams.raw import Outgoing, StoredRecord
from tests.chaos.verdict import batch, read_partition
from tests.streams.builders import session

pytestmark = pytest.mark.kafka

PARTITION = 1


async def produce(bootstrap: str, records: list[StoredRecord]) -> None:
    async with open_producer(bootstrap) as producer:
        for record in records:
            sent = await producer.send(
                EVENTS.name, key=record.key, value=record.value, headers=list(record.headers), partition=PARTITION
            )
            await sent


@asynccontextmanager
async def without_a_marker(bootstrap: str, outgoing: list[Outgoing]) -> AsyncIterator[None]:
    """``outgoing`` in the output partition, in a transaction that is ended only afterwards."""
    async with open_producer(bootstrap, transactional_id="stray") as producer, producer.transaction():
        for _, message, _ in outgoing:
            await (await send(producer, TRAJECTORIES, message, PARTITION))
        yield


async def ids(bootstrap: str) -> list[str]:
    return [(record.key or b"").decode() async for record in read_to_end(bootstrap, TRAJECTORIES)]


async def test_outputs_that_a_broker_left_without_a_marker_are_not_written_again(kafka: str) -> None:
    await produce(kafka, [*session("hangs", "ask"), *session("open", "ask")[:-1]])
    outgoing = batch(await read_partition(kafka, EVENTS, PARTITION), FoldLimits())
    async with without_a_marker(kafka, outgoing):
        found, end = await recovered_outputs(kafka, TopicPartition(TRAJECTORIES.name, PARTITION), begin=0, remember=9)
        assert [(emitted.subject, emitted.offset, end) for emitted in found] == [(b"hangs", 0, 1)]
        stop, ready = asyncio.Event(), asyncio.Event()
        assembling = asyncio.create_task(run_assembler(AssemblerConfig(kafka), stop=stop, ready=ready.set))
        await asyncio.wait_for(ready.wait(), 60)
        await produce(kafka, session("after", "ask"))
        await until_two_are_written(kafka)
        stop.set()
        await assembling
    assert sorted(await ids(kafka)) == ["after", "hangs"]


async def until_two_are_written(bootstrap: str) -> None:
    async with asyncio.timeout(60):
        while True:
            _, end = await recovered_outputs(
                bootstrap, TopicPartition(TRAJECTORIES.name, PARTITION), begin=0, remember=9
            )
            if end > 1:
                return
            await asyncio.sleep(0.2)


async def test_from_where_it_is_told_or_else_the_last_ones_are_read(kafka: str) -> None:
    target = TopicPartition(TRAJECTORIES.name, 0)
    records = [record for number in range(5) for record in session(f"t{number}", "ask", partition=0)]
    async with open_producer(kafka) as producer:
        for _, message, _ in batch(records, FoldLimits()):
            await (await send(producer, TRAJECTORIES, message, 0))
    told, _ = await recovered_outputs(kafka, target, begin=3, remember=2)
    last, end = await recovered_outputs(kafka, target, begin=None, remember=4)
    assert [emitted.subject for emitted in told] == [b"t3", b"t4"]
    assert [emitted.subject for emitted in last] == [b"t1", b"t2", b"t3", b"t4"]
    assert end == 5
