"""Inserts the records of some partitions of a topic into their tables, each row once.

A record that cannot be decoded becomes a dead letter, unless a processor of its topic already does that: `events`
(assemble), `trajectories` (score), `rewards` (group). Those, and damaged dead letters, are logged and have no row.

A record that can be decoded but does not fit its table, or that ClickHouse refuses, becomes a dead letter with the
error `unstorable`, with one alert per partition; the rest of the insert is stored. Refused rows are found by bisecting
the insert's partitions, then the offsets of one. Each half has its own token, so a repeated insert is bisected
identically.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import pyarrow as pa
from aiokafka import AIOKafkaProducer

from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, REWARDS, TRAJECTORIES
from headrace.streams.clickhouse.batches import RowBatch, joined, unstorable
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.computed_tables import ComputedTables
from headrace.streams.clickhouse.cuts import InsertRange, PlannedInsert
from headrace.streams.clickhouse.database import RetryingClient, RowsRefused
from headrace.streams.clickhouse.unstored import SOURCE, originals_of, unstored_alert
from headrace.streams.dead_letters.build import dead_letter_message

log = logging.getLogger(__name__)

READ_BY_A_PROCESSOR = frozenset({EVENTS.name, TRAJECTORIES.name, REWARDS.name, DEAD_LETTERS.name})
"""Topics whose unreadable records a processor turns into dead letters, and the topic of dead letters itself."""


class BatchWriter:
    """Inserts batches, and reports the records that are in no table."""

    def __init__(
        self,
        bootstrap: str,
        database: RetryingClient,
        producer: AIOKafkaProducer,
        computed: ComputedTables,
    ) -> None:
        """``bootstrap``: where refused records are read again. ``producer`` sends dead letters and alerts. ``computed``
        is told what was inserted.
        """
        self._bootstrap = bootstrap
        self._database = database
        self._producer = producer
        self._computed = computed

    async def write(
        self,
        insert: PlannedInsert,
        rows: Callable[[], Awaitable[Mapping[int, RowBatch]]],
        slots: asyncio.Semaphore,
        *,
        is_repeated: bool = False,
    ) -> None:
        """Insert what ``rows`` returns for ``insert``, by partition, once one of ``slots`` is free; then send dead
        letters for what is in no table. ``is_repeated``: an earlier write announced it. Waits while ClickHouse does
        not answer; raises :class:`Stopped` if the sink stops meanwhile.
        """
        refused: dict[int, dict[int, str]] = {each.partition: {} for each in insert.ranges}
        async with slots:
            batches = await rows()
            together = await asyncio.to_thread(joined, [batches[partition] for partition in sorted(batches)])
            for table, inserted in together.tables:
                errors = await self._insert(insert, table, inserted, is_repeated=is_repeated)
                for (partition, offset), error in errors.items():
                    refused[partition][offset] = error
        for each in insert.ranges:
            if each.partition in batches:
                await self._report(insert, each, batches[each.partition], refused[each.partition])

    async def _report(
        self, insert: PlannedInsert, written: InsertRange, batch: RowBatch, refused: Mapping[int, str]
    ) -> None:
        """Send dead letters and an alert for the records of ``written``, one of its ranges, that are in no table."""
        place = insert.place(written.partition)
        originals = await originals_of(self._bootstrap, place, insert.topic_id, refused)
        unstored = batch.unstorable + [(record, unstorable(refused[record.offset])) for record in originals]
        dead_letters = [each for each in batch.unreadable if each[0].topic not in READ_BY_A_PROCESSOR] + unstored
        for record, error in batch.unreadable + unstored:
            log.warning("no row for %s[%d]@%d: %s", record.topic, record.partition, record.offset, error)
        for record, error in dead_letters:
            await (await send(self._producer, DEAD_LETTERS, dead_letter_message(record, error, source=SOURCE)))
        if unstored:
            alert = unstored_alert(place.topic, place.partition, written.first, unstored)
            await (await send(self._producer, ALERTS, alert))

    async def _insert(
        self, insert: PlannedInsert, table: Table, rows: pa.Table, *, is_repeated: bool
    ) -> dict[tuple[int, int], str]:
        """Insert ``rows`` of ``insert``. Returns the errors of refused records, by partition and offset."""
        left, refused = [(insert, rows)], dict[tuple[int, int], str]()
        while left:
            part, some = left.pop()
            if not some.num_rows:
                continue
            try:
                await self._database.insert(table, some, part.token(table), is_repeated=is_repeated)
            except RowsRefused as error:
                if halves := part.halves():
                    left += [(half, half.rows_of(some)) for half in halves]
                else:
                    ((partition, offset, _),) = part.ranges
                    refused[partition, offset] = str(error)
            else:
                self._computed.inserted(table, some)
        return refused
