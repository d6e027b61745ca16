"""Ranges of the log are read whole, or not at all."""

import os

import pytest
from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import FETCH_BYTES, open_producer
from headrace.schemas.kafka.reading import RangeExpired
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TRAJECTORIES
from headrace.schemas.wire import Message
from headrace.streams.replay.input import find_spans, open_range
from tests.schemas.kafka.test_reading import delete_before

pytestmark = pytest.mark.kafka


async def test_a_range_that_expires_while_it_is_read_is_an_error(kafka: str) -> None:
    place = TopicPartition(TRAJECTORIES.name, 2)
    async with open_producer(kafka) as producer:
        for _ in range(6):
            await (await send(producer, TRAJECTORIES, Message(b"", os.urandom(FETCH_BYTES), []), partition=2))
    span = (await find_spans(kafka, TRAJECTORIES, None, None))[2]
    async with open_range(kafka, {place: span}) as reader:
        assert [record.offset async for record in reader.records()] == list(range(6))
    async with open_range(kafka, {place: span}) as reader:
        records = reader.records()
        read = [(await anext(records)).offset]
        await delete_before(kafka, place, 5)
        with pytest.raises(
            RangeExpired, match=r"trajectories\[2\] no longer has offset \d+: retention .* later --from"
        ):
            read += [record.offset async for record in records]
    assert read == list(range(len(read)))
