"""A repeated insert while the cluster names no broker, as one does for seconds after a freeze."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import BrokerNotAvailableError

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.topics import FEEDBACK
from headrace.streams.clickhouse import repeated_insert
from headrace.streams.clickhouse.cuts import InsertRange, PlannedInsert
from headrace.streams.clickhouse.repeated_insert import ranges_again
from tests.streams.clickhouse.test_sink_reading import send_to

pytestmark = [pytest.mark.kafka]


async def test_the_records_are_read_once_the_cluster_names_a_broker_again(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``start_client`` raises this error, "try again in a moment"; it would end the sink."""
    await send_to(kafka, FEEDBACK, "again", 3, partition=0)
    topic_id = (await topic_ids(kafka, [FEEDBACK.name]))[FEEDBACK.name]
    failed = list[bool]()

    @asynccontextmanager
    async def at_the_second_attempt(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        if not failed:
            failed.append(True)
            raise BrokerNotAvailableError("the cluster names no broker: try again in a moment")
        async with open_consumer(*arguments, **options) as consumer:
            yield consumer

    monkeypatch.setattr(repeated_insert, "open_consumer", at_the_second_attempt)
    again = await ranges_again(kafka, PlannedInsert(FEEDBACK.name, topic_id, (InsertRange(0, 0, 3),)))
    assert again is not None
    assert len(again[0].batch.unreadable) == 3
