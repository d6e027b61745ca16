"""The reader gives what stands in the log, committed and in order, and knows where it is."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from headrace.schemas.log import open_producer, read_to_end
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.message_reader import MessageReader
from headrace.streams.assembly.partition_reader import PartitionReader, open_reader
from headrace.streams.raw import LogRecord

pytestmark = pytest.mark.kafka


CARELESS = """
import asyncio, sys
from headrace.schemas.log import open_producer

class NotUtf8(str):
    def encode(self, *_):
        return bytes([255, 254])

async def main():
    async with open_producer(sys.argv[1], compression_type=None) as producer:
        await producer.send_and_wait("events", value=b"1", headers=[(NotUtf8("xy"), b"1")], partition=1)
        await producer.send_and_wait("events", value=b"2", partition=1)

asyncio.run(main())
"""
"""Writes a header name that is no text; aiokafka's compiled part would not let it."""


async def read(reader: PartitionReader, count: int) -> list[LogRecord]:
    """The next ``count`` records."""
    found: list[LogRecord] = []
    while len(found) < count:
        found += reader.read()
        await asyncio.sleep(0.005)
    return found


async def until_at(reader: PartitionReader, position: int) -> Sequence[LogRecord]:
    """What it reads on its way there."""
    found: list[LogRecord] = []
    while reader.position < position:
        found += reader.read()
        await asyncio.sleep(0.005)
    return found


async def test_records_come_as_they_are(kafka: str) -> None:
    headers = [("b", b"1"), ("a", b""), ("b", b"2"), ("null", None), ("é", b"\xff")]
    async with open_producer(kafka) as producer:
        for value, key in ((b"{}", b"k"), (None, b"k"), (b"", None)):
            await producer.send_and_wait(EVENTS.name, value=value, key=key, headers=headers, partition=0)
    async with open_reader(kafka, EVENTS.name, 0, 0) as reader:
        found = await read(reader, 3)
        assert reader.position == found[-1].offset + 1
    theirs = [record async for record in read_to_end(kafka, EVENTS) if record.partition == 0]
    fields = ("topic", "partition", "offset", "timestamp", "key", "value")
    assert [[getattr(record, name) for name in fields] for record in found] == [
        [getattr(record, name) for name in fields] for record in theirs
    ]
    assert [list(record.headers) for record in found] == [headers] * 3


async def test_a_header_name_that_is_no_text_does_not_stop_it(kafka: str) -> None:
    env = {**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"}
    careless = await asyncio.create_subprocess_exec(sys.executable, "-c", CARELESS, kafka, env=env)
    assert await careless.wait() == 0
    async with open_reader(kafka, EVENTS.name, 1, 0) as reader:
        found = await read(reader, 2)
    assert [(record.value, list(record.headers)) for record in found] == [(b"1", []), (b"2", [])]


async def test_of_transactions_only_committed_records_are_read_and_markers_are_passed(kafka: str) -> None:
    async with open_producer(kafka, transactional_id="reader") as producer:
        for value, commits in ((b"kept", True), (b"gone", False), (b"last", True)):
            await producer.begin_transaction()
            sent = await producer.send_and_wait(EVENTS.name, value=value, partition=2)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    async with open_reader(kafka, EVENTS.name, 2, 0) as reader:
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


def test_what_keeps_it_from_reading_is_raised() -> None:
    reader = MessageReader(Refusing({"group.id": "none"}), EVENTS.name, 0, 0)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        reader.read()
