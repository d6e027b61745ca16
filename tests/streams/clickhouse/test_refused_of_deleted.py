"""A topic is deleted while ClickHouse refuses one of its rows."""

from typing import Any

import pytest

from headrace.schemas.topics import FEEDBACK
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.database import RetryingClient, RowsRefused
from headrace.streams.clickhouse.sink_config import SinkConfig
from tests.streams.clickhouse.test_deleted_topics import delete, send_feedback
from tests.streams.clickhouse.test_sink import events_of, running_sink, send_events, until

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


async def test_the_sink_continues_if_a_topic_is_deleted_of_which_a_row_is_refused(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = RetryingClient.insert

    async def refused(self: RetryingClient, table: Table, *arguments: Any, **named: Any) -> None:
        if table.name == FEEDBACK.name:
            await delete(kafka, FEEDBACK)
            raise RowsRefused("a value that does not parse")
        await insert(self, table, *arguments, **named)

    monkeypatch.setattr(RetryingClient, "insert", refused)
    async with running_sink(SinkConfig(kafka, clickhouse, group="refused-deleted")):
        await send_feedback(kafka, "refused-deleted", 1)
        # Its originals are looked up for dead letters meanwhile.
        await send_events(kafka, "others-refused", 100)
        await until(clickhouse, events_of("others-refused"), 100)
        await send_events(kafka, "others-later", 100)
        await until(clickhouse, events_of("others-later"), 100)
