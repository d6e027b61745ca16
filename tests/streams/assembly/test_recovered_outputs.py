"""A predecessor's records count as written with or without a marker; another producer's open transaction does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.transactions import decide_unmarked
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.schemas.wire import decode
from headrace.streams.assembly.assemble import dead_letter_output
from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import UnusableRecord
from headrace.streams.assembly.recovered_outputs import recovered_outputs
from headrace.streams.assembly.recovery import CommitMetadata
from headrace.streams.raw import Outgoing, StoredRecord
from tests.chaos.verdict import batch, read_partition
from tests.streams.builders import session, with_header
from tests.streams.unmarked import leave_out, let_partitions_be_left_out

pytestmark = pytest.mark.kafka

PARTITION = 1


async def produce(bootstrap: str, records: list[StoredRecord]) -> None:
    async with open_producer(bootstrap) as producer:
        for record in records:
            sent = await producer.send(
                EVENTS.name, key=record.key, value=record.value, headers=list(record.headers), partition=PARTITION
            )
            await sent


async def write(producer: AIOKafkaProducer, outgoing: list[Outgoing]) -> None:
    for _, message, _ in outgoing:
        await (await send(producer, TRAJECTORIES, message, PARTITION))


async def assembled(bootstrap: str, names: tuple[str, ...]) -> list[Outgoing]:
    """The batch result for the trajectories ``names`` of the partition."""
    outgoing = batch(await read_partition(bootstrap, EVENTS, PARTITION), FoldLimits())
    return [each for each in outgoing if each.message.key.decode() in names]


@asynccontextmanager
async def assembling(bootstrap: str, group: str = "assemble") -> AsyncIterator[asyncio.Event]:
    """An assembler, which may not be ready yet; stopped at the end."""
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(run_assembler(AssemblerConfig(bootstrap, group=group), stop=stop, ready=ready.set))
    try:
        yield ready
    finally:
        stop.set()
        await task


async def until_written(bootstrap: str, *names: str) -> list[str]:
    """The trajectories among ``names`` as soon as all are present; a duplicate is listed twice."""
    async with asyncio.timeout(60):
        while True:
            keys = [(record.key or b"").decode() async for record in read_to_end(bootstrap, TRAJECTORIES)]
            found = [key for key in keys if key in names]
            if set(found) == set(names):
                return sorted(found)
            await asyncio.sleep(0.2)


async def leave_unmarked(bootstrap: str, transactional_id: str, outgoing: list[Outgoing]) -> None:
    """Write ``outgoing`` as the producer of that ID, in a transaction whose marker the partition never gets."""
    await let_partitions_be_left_out(bootstrap)
    async with open_producer(bootstrap, transactional_id=transactional_id) as producer, producer.transaction():
        leave_out(producer, TRAJECTORIES)
        await write(producer, outgoing)


async def test_trajectories_without_a_marker_are_not_written_again(kafka: str) -> None:
    await produce(kafka, [*session("hangs", "ask"), *session("open", "ask")[:-1]])
    await leave_unmarked(kafka, f"headrace-assemble-{PARTITION}", await assembled(kafka, ("hangs",)))
    assert not [record async for record in read_to_end(kafka, TRAJECTORIES)]
    async with assembling(kafka):
        await produce(kafka, session("after", "ask"))
        assert await until_written(kafka, "hangs", "after") == ["after", "hangs"]


async def test_an_undecided_transaction_is_committed_by_the_next_producer_of_its_id(kafka: str) -> None:
    await produce(kafka, session("undecided", "ask"))
    await leave_unmarked(kafka, "somebody", await assembled(kafka, ("undecided",)))
    async with open_producer(kafka, transactional_id="somebody") as producer:
        await decide_unmarked(producer, [TopicPartition(TRAJECTORIES.name, PARTITION)], commit=True)
    assert await until_written(kafka, "undecided") == ["undecided"]


async def letters_of(bootstrap: str, trajectory_id: str) -> int:
    found = [decode(record.headers, record.value)[1] async for record in read_to_end(bootstrap, DEAD_LETTERS)]
    return sum(isinstance(letter, DeadLetter) and letter.trajectory_id == trajectory_id for letter in found)


@pytest.mark.parametrize("outcome", ["committed", "aborted", "first-aborted"])
async def test_a_dead_letter_without_a_marker_is_written_once(kafka: str, outcome: str) -> None:
    name, place = f"letter-{outcome}", TopicPartition(EVENTS.name, PARTITION)
    first, *_ = session(name, "ask")
    spoilt = with_header(first, "ce_sequence", b"seven")
    await let_partitions_be_left_out(kafka)
    async with open_consumer(kafka) as consumer:
        begin = (await consumer.end_offsets([place]))[place]
    await produce(kafka, [spoilt, spoilt])
    arrived = replace(spoilt, partition=PARTITION, offset=begin)
    letters = [
        dead_letter_output(dead)
        for dead in PartitionFold(FoldLimits()).arrive(arrived)
        if isinstance(dead, UnusableRecord)
    ]
    async with open_producer(kafka, transactional_id=f"headrace-{name}-{PARTITION}") as producer:

        async def commit(next_offset: int, letters_end: int) -> None:
            checkpoint = CommitMetadata(next=next_offset, stream_ms=0, output=0, letters=letters_end)
            await producer.send_offsets_to_transaction(
                {place: OffsetAndMetadata(next_offset, checkpoint.to_metadata())}, name
            )

        if outcome != "first-aborted":
            async with producer.transaction():
                await commit(begin, 0)
        leave_out(producer, DEAD_LETTERS)
        await producer.begin_transaction()
        written = [(await (await send(producer, DEAD_LETTERS, each.message))).offset for each in letters]
        await commit(begin + 1, written[-1] + 1)
        if outcome == "committed":
            await producer.commit_transaction()
    async with assembling(kafka, name) as ready:
        await asyncio.wait_for(ready.wait(), 60)
        async with asyncio.timeout(60):
            while await letters_of(kafka, name) < 2:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.2)
    assert await letters_of(kafka, name) == 2


@pytest.mark.parametrize("outcome", ["aborted", "committed"])
async def test_another_producers_transaction_counts_once_it_is_committed(kafka: str, outcome: str) -> None:
    await produce(kafka, session(outcome, "ask"))
    async with open_producer(kafka, transactional_id="another-group") as producer:
        await producer.begin_transaction()
        await write(producer, await assembled(kafka, (outcome,)))
        async with assembling(kafka) as ready:
            await asyncio.sleep(2)
            assert not ready.is_set()
            await (producer.abort_transaction() if outcome == "aborted" else producer.commit_transaction())
            await asyncio.wait_for(ready.wait(), 60)
            await produce(kafka, session(f"after-{outcome}", "ask"))
            assert await until_written(kafka, outcome, f"after-{outcome}") == sorted([outcome, f"after-{outcome}"])


async def test_reading_starts_at_the_given_offset_or_at_the_last_records(kafka: str) -> None:
    target = TopicPartition(TRAJECTORIES.name, 0)
    records = [record for number in range(5) for record in session(f"t{number}", "ask", partition=0)]
    async with open_producer(kafka) as producer:
        sent = [await send(producer, TRAJECTORIES, message, 0) for _, message, _ in batch(records, FoldLimits())]
        offsets = [(await each).offset for each in sent]
    from_offset, _ = await recovered_outputs(kafka, target, begin=offsets[3], remember=2)
    last, end = await recovered_outputs(kafka, target, begin=None, remember=4)
    assert [emitted.remembered.subject for emitted in from_offset] == [b"t3", b"t4"]
    assert [emitted.remembered.subject for emitted in last] == [b"t1", b"t2", b"t3", b"t4"]
    assert end == offsets[-1] + 1
