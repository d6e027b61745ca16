"""The reader returns committed records in order, and knows its position."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from aiokafka import TopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord
from headrace.streams.reading import partition_reader
from headrace.streams.reading.message_reader import MessageReader
from headrace.streams.reading.partition_reader import ArrivalReader, PartitionReader, open_reader
from tests.streams.native.built import needs_speedups

pytestmark = pytest.mark.kafka


CARELESS = """
import asyncio, sys
from headrace.schemas.kafka.clients import open_producer

class NotUtf8(str):
    def encode(self, *_):
        return bytes([255, 254])

async def main():
    async with open_producer(sys.argv[1], compression_type=None) as producer:
        await producer.send_and_wait("events", value=b"1", headers=[(NotUtf8("xy"), b"1")], partition=1)
        await producer.send_and_wait("events", value=b"2", partition=1)

asyncio.run(main())
"""
"""Writes a header name that is not text, which aiokafka's compiled part would refuse."""


@pytest.fixture(params=[pytest.param("arrivals", marks=needs_speedups), "messages"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records come by the extension module, or without it."""
    if request.param == "messages":
        monkeypatch.setattr(partition_reader, "SPEEDUPS", None)


async def read(reader: PartitionReader, count: int) -> list[LogRecord]:
    """The next ``count`` records."""
    found: list[LogRecord] = []
    while len(found) < count:
        found += reader.read()
        await asyncio.sleep(0.005)
    return found


async def until_at(reader: PartitionReader, position: int) -> Sequence[LogRecord]:
    """The records that the reader reads up to that position."""
    found: list[LogRecord] = []
    while reader.position < position:
        found += reader.read()
        await asyncio.sleep(0.005)
    return found


async def end_of(bootstrap: str, partition: int) -> int:
    """End offset of ``events``."""
    async with open_consumer(bootstrap) as consumer:
        place = TopicPartition(EVENTS.name, partition)
        return int((await consumer.end_offsets([place]))[place])


@pytest.mark.usefixtures("way")
async def test_records_are_read_unchanged(kafka: str) -> None:
    headers = [("b", b"1"), ("a", b""), ("b", b"2"), ("null", None), ("é", b"\xff")]
    begin = await end_of(kafka, 0)
    async with open_producer(kafka) as producer:
        for value, key in ((b"{}", b"k"), (None, b"k"), (b"", None)):
            await producer.send_and_wait(EVENTS.name, value=value, key=key, headers=headers, partition=0)
    async with open_reader(kafka, EVENTS.name, 0, begin) as reader:
        found = await read(reader, 3)
        assert reader.position == found[-1].offset + 1
    theirs = [record async for record in read_to_end(kafka, EVENTS, start={0: begin}) if record.partition == 0]
    fields = ("topic", "partition", "offset", "timestamp", "key", "value")
    assert [[getattr(record, name) for name in fields] for record in found] == [
        [getattr(record, name) for name in fields] for record in theirs
    ]
    assert [list(record.headers) for record in found] == [headers] * 3


@pytest.mark.usefixtures("way")
async def test_a_header_name_that_is_not_text_does_not_stop_the_reader(kafka: str) -> None:
    begin = await end_of(kafka, 1)
    env = {**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"}
    careless = await asyncio.create_subprocess_exec(sys.executable, "-c", CARELESS, kafka, env=env)
    assert await careless.wait() == 0
    async with open_reader(kafka, EVENTS.name, 1, begin) as reader:
        found = await read(reader, 2)
    assert [(record.value, list(record.headers)) for record in found] == [(b"1", []), (b"2", [])]


@pytest.mark.usefixtures("way")
async def test_only_committed_records_are_read_and_markers_are_skipped(kafka: str) -> None:
    begin = await end_of(kafka, 2)
    async with open_producer(kafka, transactional_id="reader") as producer:
        for value, commits in ((b"kept", True), (b"gone", False), (b"last", True)):
            await producer.begin_transaction()
            sent = await producer.send_and_wait(EVENTS.name, value=value, partition=2)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    async with open_reader(kafka, EVENTS.name, 2, begin) as reader:
        found = await until_at(reader, sent.offset + 2)
        assert [record.value for record in found] == [b"kept", b"last"]
        assert reader.end == sent.offset + 2
        assert reader.read() == []
    async with open_reader(kafka, EVENTS.name, 2, found[1].offset) as reader:
        assert [record.value for record in await read(reader, 1)] == [b"last"]


class Refusing(Consumer):
    """A client whose broker does not let it read."""

    def consume(self, *_: object) -> list[Any]:
        """An error where a record would be."""
        return [Mock(error=lambda: KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))]


def test_an_error_while_reading_messages_is_raised() -> None:
    reader = MessageReader(Refusing({"group.id": "none"}), EVENTS.name, 0, 0)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        reader.read()


@needs_speedups
async def test_an_error_while_reading_arrivals_is_raised(kafka: str) -> None:
    settings = {"bootstrap.servers": kafka, "group.id": "none", "auto.offset.reset": "error"}
    reader = ArrivalReader(settings, EVENTS.name, 0, 10**9)
    with pytest.raises(KafkaException, match="_AUTO_OFFSET_RESET"):
        await until_at(reader, 10**9 + 1)
    reader.close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.read()


@needs_speedups
@pytest.mark.parametrize(
    ("settings", "why"), [({"group.id": "none", "no.such": "1"}, "no.such"), ({"check.crcs": "maybe"}, "check.crcs")]
)
def test_a_setting_the_client_does_not_accept_is_refused_by_name(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ArrivalReader(settings, EVENTS.name, 0, 0)


@needs_speedups
def test_a_library_without_the_client_is_refused() -> None:
    with pytest.raises(ImportError, match="librdkafka cannot be used"):
        SPEEDUPS.PartitionLog("no-such-library.so", {}, EVENTS.name, 0, 0)
