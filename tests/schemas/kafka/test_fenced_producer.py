"""One producer at a time under a transactional id, on a real broker."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFenced,
    TopicAuthorizationFailedError,
    UnknownError,
)
from aiokafka.producer.sender import EndTxnHandler
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka import fenced_producer
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.fenced_producer import FencedProducer, Transaction, cause_of, open_fenced_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.transactions import decide_unmarked
from headrace.schemas.topics import REWARDS, TRAINING
from headrace.schemas.wire import Message
from tests.streams.unmarked import leave_out, let_partitions_be_left_out

TIMEOUT_MS = 60_000
PLACE = TopicPartition(REWARDS.name, 0)


def message(value: str) -> Message:
    return Message(b"k", value.encode(), [])


async def written(kafka: str, prefix: str) -> list[str]:
    """Committed values in ``rewards`` that begin with ``prefix``."""
    values = [(record.value or b"").decode() async for record in read_to_end(kafka, REWARDS, decided=True)]
    return [value for value in values if value.startswith(prefix)]


async def write(producer: FencedProducer, *values: str) -> None:
    async def send(transaction: Transaction) -> None:
        for value in values:
            await transaction.send(REWARDS, message(value), 0)

    await producer.transact(send, within_s=60, what="a test's transaction")


@pytest.mark.kafka
async def test_a_transaction_is_written_whole_or_not_at_all(kafka: str) -> None:
    async with open_fenced_producer(kafka, "whole", timeout_ms=TIMEOUT_MS) as producer:
        await write(producer, "whole-1", "whole-2")

        async def fail(transaction: Transaction) -> None:
            await transaction.send(REWARDS, message("whole-3"), 0)
            raise ValueError("ours")

        with pytest.raises(ValueError, match="ours"):
            await producer.transact(fail, within_s=60, what="a test's transaction")
        await write(producer, "whole-4")
    assert await written(kafka, "whole-") == ["whole-1", "whole-2", "whole-4"]


@pytest.mark.kafka
async def test_a_successor_fences_it_also_between_two_sends(kafka: str) -> None:
    async with open_fenced_producer(kafka, "between", timeout_ms=TIMEOUT_MS) as first:

        async def overtaken(transaction: Transaction) -> None:
            await (await transaction.send(REWARDS, message("between-lost"), 0))
            async with open_fenced_producer(kafka, "between", timeout_ms=TIMEOUT_MS) as second:
                await write(second, "between-kept")
            # The broker refuses the first of these, and aiokafka then only says that there is no transaction.
            for _ in range(100):
                await transaction.send(REWARDS, message("between-refused"), 0)
                await asyncio.sleep(0.05)

        with pytest.raises(ProducerFenced):
            await first.transact(overtaken, within_s=60, what="a test's transaction")
        with pytest.raises(ProducerFenced):
            await write(first, "between-later")
    assert await written(kafka, "between-") == ["between-kept"]


@pytest.mark.kafka
@pytest.mark.parametrize("fails", [False, True])
async def test_an_end_that_fails_while_the_broker_fences_is_reported_as_fenced(
    kafka: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Kafka 4.3 answers END_TXN with an internal error while a successor's start is being written."""

    def internal_error(self: EndTxnHandler, response: Any) -> float | None:
        response.error_code = UnknownError.errno
        return handle(self, response)

    async def work(transaction: Transaction) -> None:
        await transaction.send(REWARDS, message("internal"), 0)
        if fails:
            raise ValueError("ours")

    handle = EndTxnHandler.handle_response
    async with open_fenced_producer(kafka, f"internal-{fails}", timeout_ms=TIMEOUT_MS) as producer:
        monkeypatch.setattr(EndTxnHandler, "handle_response", internal_error)
        with pytest.raises(ProducerFenced, match="failed to end a transaction"):
            await producer.transact(work, within_s=60, what="a test's transaction")
        with pytest.raises(ProducerFenced):
            await write(producer, "internal-later")


@pytest.mark.kafka
async def test_a_transaction_that_takes_too_long_is_named(kafka: str) -> None:
    async def stay(transaction: Transaction) -> None:
        await transaction.send(REWARDS, message("long-1"), 0)
        await asyncio.Event().wait()

    async with open_fenced_producer(kafka, "long", timeout_ms=TIMEOUT_MS) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"the long transaction did not end within 0\.5 s"):
            await producer.transact(stay, within_s=0.5, what="the long transaction")
        await write(producer, "after-long")  # it was aborted
    assert await written(kafka, "long-") == []


@pytest.mark.kafka
@pytest.mark.parametrize("aborts", [True, False])
async def test_readers_wait_for_a_failed_transaction_only_where_it_is_not_aborted(kafka: str, aborts: bool) -> None:
    async def fail(transaction: Transaction) -> None:
        await (await transaction.send(REWARDS, message("failed"), 0))
        raise ValueError("ours")

    async with open_consumer(kafka) as reader:
        async with open_fenced_producer(kafka, "failing", timeout_ms=TIMEOUT_MS) as producer:
            with pytest.raises(ValueError, match="ours"):
                await producer.transact(fail, within_s=60, what="a test's transaction", aborts=aborts)
            async with open_consumer(kafka, isolation_level="read_uncommitted") as everything:
                end = (await everything.end_offsets([PLACE]))[PLACE]
            # What stands behind an open transaction is hidden; an abort's marker takes a moment.
            for _ in range(100 if aborts else 1):
                stable = (await reader.end_offsets([PLACE]))[PLACE]
                if stable >= end:
                    break
                await asyncio.sleep(0.1)
            assert (stable >= end) is aborts
        async with open_fenced_producer(kafka, "failing", timeout_ms=TIMEOUT_MS) as successor:
            await successor.resolve([PLACE], commit=False, within_s=60, what="the last transaction")
    assert await written(kafka, "failed") == []


async def hidden(kafka: str, place: TopicPartition) -> int:
    """How many offsets at the end of ``place`` an open transaction hides, once markers had time to be written."""
    async with open_consumer(kafka) as committed, open_consumer(kafka, isolation_level="read_uncommitted") as all_:
        for _ in range(20):
            end, stable = [(await each.end_offsets([place]))[place] for each in (all_, committed)]
            if end == stable:
                break
            await asyncio.sleep(0.1)
    return int(end - stable)


def heed(producer: FencedProducer) -> None:
    """End what :func:`leave_out` began."""
    del producer.kafka._txn_manager.maybe_add_partition_to_txn


def disconnect(producer: FencedProducer) -> None:
    """Close its connections, as the broker does when it stops."""
    for connection in list(producer.kafka.client._conns.values()):
        connection.close()


@pytest.mark.kafka
@pytest.mark.parametrize("when", ["in the transaction", "after it"])
async def test_a_marker_that_the_broker_omitted_is_written_once_the_coordinator_is_back(kafka: str, when: str) -> None:
    group, consumed = "omitted", TopicPartition(TRAINING.name, 3)
    await let_partitions_be_left_out(kafka)
    async with open_fenced_producer(kafka, f"omitted {when}", timeout_ms=TIMEOUT_MS) as producer:
        await write(producer, f"{when}-1")
        assert not await hidden(kafka, PLACE)  # its own marker would also end the next, which is not announced

        async def work(transaction: Transaction) -> None:
            await transaction.send(REWARDS, message(f"{when}-2"), 0)
            await transaction.commit_offsets({consumed: OffsetAndMetadata(7, "kept")}, group)
            if when == "in the transaction":
                await asyncio.gather(*transaction.sent)
                disconnect(producer)
                heed(producer)

        async def elsewhere(transaction: Transaction) -> None:
            await transaction.send(TRAINING, message("elsewhere"), 0)

        leave_out(producer.kafka, REWARDS)
        await producer.transact(work, within_s=60, what="a test's transaction")
        if when == "after it":
            assert await hidden(kafka, PLACE)
            heed(producer)
            disconnect(producer)
            await producer.transact(elsewhere, within_s=60, what="a test's transaction")
        assert not await hidden(kafka, PLACE)
    commit = (await committed_offsets(kafka, group, [consumed]))[consumed]
    assert (commit.offset, commit.metadata) == (7, "kept")


@pytest.mark.kafka
async def test_after_an_abort_whose_marker_may_be_missing_only_a_new_start_helps(kafka: str) -> None:
    async def fail(transaction: Transaction) -> None:
        await (await transaction.send(REWARDS, message("doubt-1"), 0))
        disconnect(producer)
        raise ValueError("ours")

    async with open_fenced_producer(kafka, "doubt", timeout_ms=TIMEOUT_MS) as producer:
        with pytest.raises(ValueError, match="ours"):
            await producer.transact(fail, within_s=60, what="a test's transaction")
        with pytest.raises(KafkaTimeoutError, match="start the producer again"):
            await write(producer, "doubt-2")
    async with open_fenced_producer(kafka, "doubt", timeout_ms=TIMEOUT_MS) as successor:
        await write(successor, "doubt-3")
    assert await written(kafka, "doubt-") == ["doubt-3"]


@pytest.mark.kafka
async def test_resolving_is_repeated_if_the_coordinator_is_lost_meanwhile(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[bool] = []

    async def decide(kafka_producer: AIOKafkaProducer, places: Iterable[TopicPartition], *, commit: bool) -> None:
        await decide_unmarked(kafka_producer, places, commit=commit)
        resolved.append(commit)
        if len(resolved) == 1:
            disconnect(producer)

    monkeypatch.setattr(fenced_producer, "decide_unmarked", decide)
    async with open_fenced_producer(kafka, "resolving", timeout_ms=TIMEOUT_MS) as producer:
        await producer.resolve([PLACE], commit=False, within_s=60, what="the last transaction")
        assert len(resolved) > 1
        assert not any(resolved)
        await write(producer, "resolving-1")
    assert await written(kafka, "resolving-") == ["resolving-1"]


@pytest.mark.kafka
async def test_places_are_every_partition_of_the_topics(kafka: str) -> None:
    async with open_fenced_producer(kafka, "places", timeout_ms=TIMEOUT_MS) as producer:
        places = await producer.places_of([REWARDS, TRAINING])
    assert places == [
        TopicPartition(topic.name, number) for topic in (REWARDS, TRAINING) for number in range(topic.partitions)
    ]


@pytest.mark.kafka
async def test_a_send_that_the_broker_refuses_fails_the_transaction_although_nobody_waits_for_it(kafka: str) -> None:
    noise = b"".join(number.to_bytes(4) for number in range(0, 2**32, 2**32 // (REWARDS.max_bytes // 2)))

    async def refused_send(transaction: Transaction) -> None:
        await transaction.send(REWARDS, message("refused-1"), 0)
        await transaction.send(REWARDS, Message(b"k", noise, []), 0)

    async with open_fenced_producer(kafka, "refused-send", timeout_ms=TIMEOUT_MS) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.transact(refused_send, within_s=60, what="a test's transaction")
    assert await written(kafka, "refused-") == []


def refused() -> AIOKafkaProducer:
    """A producer whose transaction was refused a topic between two sends."""
    producer = AIOKafkaProducer(bootstrap_servers="broker:9092", transactional_id="refused")
    producer._closed = True  # nothing was started
    producer._txn_manager.set_pid_and_epoch(1, 0)
    producer._txn_manager.begin_transaction()
    producer._txn_manager.error_transaction(TopicAuthorizationFailedError("rejected"))
    return producer


async def test_what_ended_a_transaction_is_raised_and_not_that_there_is_none() -> None:
    nothing_begun, other = IllegalOperation("not in transaction"), ValueError("ours")
    assert isinstance(cause_of(refused(), nothing_begun), TopicAuthorizationFailedError)
    assert cause_of(refused(), other) is other
