"""Records that are small only while compressed, on a real broker: each is reported once; the partition continues."""

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
import zstandard
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS
from headrace.streams.assembly.batch_outputs import KIND
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.reading.unreadable_batch import unreadable_batch
from tests.streams.assembly.test_assembler import assembling, config, everything, produce, trajectories, until
from tests.streams.builders import session

pytestmark = pytest.mark.kafka

assert SPEEDUPS is not None, "the reader of the extension module is meant here"

LARGE: dict[str, dict[str, Any]] = {
    "key": {"key": bytes(2 * MAX_REQUEST_BYTES)},
    "header": {"headers": [("x", bytes(2 * MAX_REQUEST_BYTES))]},
    "value": {"value": bytes(2 * MAX_REQUEST_BYTES)},
}
BOMB = bytes(150_000_000)
BOMBS = {"too large for both clients": (BOMB, True), "too large only for librdkafka": (bytes(90_000_000), False)}
REFUSED = KafkaException(KafkaError(KafkaError._BAD_COMPRESSION))
"""Values, and whether zstd states their size: without it librdkafka guesses, and refuses less than its limit."""


async def inflating(kafka: str, *, states_size: bool = True, **record: Any) -> int:
    """Send a record of many megabytes, a few kilobytes on the wire; returns its offset."""
    compressor = zstandard.ZstdCompressor(write_content_size=states_size)
    compressed = patch(
        f"{DefaultRecordBatchBuilder.__module__}.zstd_encode", lambda data, *_: compressor.compress(bytes(data))
    )
    async with AIOKafkaProducer(
        bootstrap_servers=kafka, compression_type="zstd", max_request_size=2**30, max_batch_size=2**30
    ) as producer:
        with compressed:
            sent = await producer.send_and_wait(EVENTS.name, **({"partition": 0, "key": b"k", "value": b"{}"} | record))
            return int(sent.offset)


async def dead_letters(kafka: str) -> dict[int, DeadLetter]:
    """Dead letters of partition 0 by offset; fails if one is present twice."""
    found = [DeadLetter.model_validate_json(each.value or b"") for each in await everything(kafka, DEAD_LETTERS)]
    counted = Counter(each.offset for each in found if each.partition == 0)
    assert set(counted.values()) <= {1}, counted
    return {each.offset: each for each in found if each.partition == 0}


async def goes_on(kafka: str, task: "asyncio.Task[None]", name: str) -> None:
    """Wait until a trajectory that is sent now has been assembled."""
    await produce(kafka, session(name, "ask", "answer"), partition=0)

    async def look() -> Any:
        if task.done():
            task.result()
        return await trajectories(kafka, name)

    await until(look, bool)


@pytest.mark.parametrize("part", LARGE)
def test_a_record_too_large_for_its_dead_letter_is_reported_without_its_bytes(kafka: str, part: str) -> None:
    async def run() -> None:
        async with assembling(config(kafka)) as task:
            offset = await inflating(kafka, **LARGE[part])
            await goes_on(kafka, task, f"behind-{part}")
            assert f"only in events[0]@{offset}" in (await dead_letters(kafka))[offset].message

    asyncio.run(run())


@pytest.mark.parametrize(("value", "states_size"), BOMBS.values(), ids=list(BOMBS))
def test_a_batch_that_cannot_be_decompressed_is_skipped_once(kafka: str, value: bytes, states_size: bool) -> None:
    # Long enough for a restart on a busy machine: what is open must not time out in between.
    async def run() -> None:
        async with assembling(config(kafka, idle_timeout_s=600.0)) as task:
            # The restart reads open trajectories again, and this batch with them.
            around = f"around-{len(value)}"
            await produce(kafka, session(around, "ask", "answer")[:2], partition=0)
            offset = await inflating(kafka, value=value, states_size=states_size)
            await goes_on(kafka, task, f"behind-{len(value)}")
        async with assembling(config(kafka, idle_timeout_s=600.0)) as task:
            await produce(kafka, session(around, "ask", "answer")[2:], partition=0)
            await goes_on(kafka, task, f"later-{len(value)}")
            assert (await trajectories(kafka, around))[around].defects == []
        letter = (await dead_letters(kafka))[offset]
        assert letter.error is DeadLetterError.OVERSIZE
        assert f"offsets {offset} to {offset}" in letter.message
        alerts = [Alert.model_validate_json(each.value or b"") for each in await everything(kafka, ALERTS)]
        assert [each.details["offset"] for each in alerts if each.kind == KIND].count(offset) == 1

    asyncio.run(run())


def test_its_offsets_are_the_same_wherever_a_reader_stopped_in_front_of_it(kafka: str) -> None:
    async def run() -> None:
        place = TopicPartition(EVENTS.name, 1)
        async with (
            AIOKafkaProducer(bootstrap_servers=kafka, transactional_id="in-front") as producer,
            producer.transaction(),
        ):
            before = await producer.send_and_wait(place.topic, b"{}", partition=place.partition)
        first = await inflating(kafka, value=BOMB, partition=place.partition)
        await inflating(kafka, value=BOMB, partition=place.partition)
        assert first == before.offset + 2, "the marker of the transaction has an offset"
        for position in (before.offset + 1, first):
            assert await unreadable_batch(kafka, place, position, REFUSED) == range(first, first + 1)
        with pytest.raises(KafkaException, match="_BAD_COMPRESSION"):  # a record in front of it can be read
            await unreadable_batch(kafka, place, before.offset, REFUSED)
        with pytest.raises(KafkaException, match="_TRANSPORT"):
            await unreadable_batch(kafka, place, first, KafkaException(KafkaError(KafkaError._TRANSPORT)))

    asyncio.run(run())
