"""The process oncall ends and starts again, on a real broker: each alert is raised once and resolved once."""

import asyncio

import pytest

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import ALERTS, REWARDS
from headrace.schemas.wire import Message
from tests.streams.oncall.test_oncall import Running, alerts_of, until, write_dead_letter

pytestmark = pytest.mark.kafka


async def written_to_alerts(kafka: str) -> int:
    """The end of ``alerts``, with what no reader of committed records sees yet."""
    async with open_consumer(kafka, isolation_level="read_uncommitted") as consumer:
        return sum((await consumer.end_offsets(await partitions_of(consumer, ALERTS))).values())


async def test_an_alert_that_is_hidden_by_an_open_transaction_is_not_raised_again(kafka: str) -> None:
    """Another process was killed in its transaction: until the broker aborts it, no reader sees what follows it."""
    first = await Running(kafka, window_s=3600).ready()
    async with open_producer(kafka, transactional_id="killed") as killed:
        await killed.begin_transaction()
        await (await send(killed, ALERTS, Message(b"r", b"{}", [])))
        before = await written_to_alerts(kafka)
        await write_dead_letter(kafka, 1, REWARDS.name)

        async def raised() -> bool:
            return await written_to_alerts(kafka) > before

        await until(raised)
        await first.end()
        second = Running(kafka, window_s=3600)
        await asyncio.sleep(3)  # rounds in which it could be raised again
        await killed.abort_transaction()
    await second.ready()
    await asyncio.sleep(1)
    await second.end()
    assert [each.details["subject"] for each in await alerts_of(kafka, "oncall_dead_letters")] == [REWARDS.name]
