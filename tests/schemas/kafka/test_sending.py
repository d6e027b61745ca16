"""Records of one transaction in batches: partitions as every Kafka client chooses them, offsets and order."""

from random import Random

import pytest
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.kafka.fenced_producer import Transaction, open_fenced_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import OutgoingRecord, partition_of
from headrace.schemas.topics import REWARDS

BATCH_BYTES = 10_000


@given(st.binary(max_size=60), st.integers(1, 64))
def test_a_key_has_the_partition_that_other_producers_choose(key: bytes, count: int) -> None:
    numbers = list(range(count))
    assert partition_of(key, numbers) == DefaultPartitioner()(key, numbers, numbers)
    assert partition_of(None, numbers) in numbers


def record(number: int, size: int, partition: int | None = None) -> OutgoingRecord:
    value = f"{number}:".encode() + bytes(size)
    return OutgoingRecord(REWARDS.name, b"key-%d" % (number % 5), value, [("n", b"%d" % number)], 1_000, partition)


@pytest.mark.kafka
async def test_offsets_and_order_hold_over_many_batches_and_records_larger_than_one(kafka: str) -> None:
    sizes = [10, 4_000, 9_000, 200_000, 1, 0, 30_000] * 30
    records = [record(number, size, number % 3 or None) for number, size in enumerate(sizes)]
    found: list[int] = []

    async def write(transaction: Transaction) -> None:
        found.extend(await transaction.send_all(records))
        found.extend(await transaction.send_all([]))

    async with open_fenced_producer(kafka, "batches", timeout_ms=60_000, max_batch_size=BATCH_BYTES) as producer:
        await producer.transact(write, within_s=60, what="a test's transaction")
    assert len(found) == len(records)

    read = [each async for each in read_to_end(kafka, REWARDS, decided=True)]
    by_number = {int(dict(each.headers)["n"]): each for each in read if dict(each.headers).get("n")}
    assert by_number.keys() == set(range(len(records)))
    for number, each in by_number.items():
        assert (each.offset, each.key, each.value) == (found[number], records[number].key, records[number].value)
    counts = len({each.partition for each in by_number.values()})
    for partition in range(counts):
        offsets = [found[number] for number, each in sorted(by_number.items()) if each.partition == partition]
        assert offsets == sorted(offsets)


@pytest.mark.kafka
async def test_a_record_that_the_topic_refuses_fails_the_transaction(kafka: str) -> None:
    noise = Random(7).randbytes(REWARDS.max_bytes + 1_000_000)  # does not compress

    async def write(transaction: Transaction) -> None:
        small, large = record(1, 10), OutgoingRecord(REWARDS.name, b"refused", noise)
        await transaction.send_all([small._replace(key=b"refused"), large, small._replace(key=b"refused")])

    async with open_fenced_producer(kafka, "refused-batch", timeout_ms=60_000) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.transact(write, within_s=60, what="a test's transaction")
    assert [each async for each in read_to_end(kafka, REWARDS) if each.key == b"refused"] == []


@pytest.mark.kafka
async def test_a_record_that_only_compression_makes_small_is_refused(kafka: str) -> None:
    """The broker would take it, and every consumer would skip it."""
    parts = {"key": bytes(MAX_REQUEST_BYTES + 1)}, {"value": bytes(MAX_REQUEST_BYTES + 1)}

    async with open_fenced_producer(kafka, "swollen", timeout_ms=60_000) as producer:
        for part in (*parts, {"headers": [("x", bytes(MAX_REQUEST_BYTES))]}):
            swollen = record(0, 1, 0)._replace(**part)

            async def write(transaction: Transaction, swollen: OutgoingRecord = swollen) -> None:
                await transaction.send_all([record(1, 1, 0), swollen])

            with pytest.raises(MessageSizeTooLargeError, match="at most"):
                await producer.transact(write, within_s=60, what="a test's transaction")
