"""Writes a batch of a partition to its tables, each row once.

A record that cannot be decoded becomes a dead letter, unless a processor of its topic already does that: `events`
(assemble), `trajectories` (score), `rewards` (group). Those, and damaged dead letters, are logged and have no row.

A record that can be decoded but does not fit its table, or that ClickHouse refuses, becomes a dead letter with the
error `unstorable`, with one alert per batch; the rest of the batch is stored. Refused rows are found by bisecting the
insert. Each half has its own token, so a repeated batch is bisected identically.
"""

import asyncio
import logging

import pyarrow as pa
from aiokafka import AIOKafkaProducer, TopicPartition

from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, REWARDS, TRAJECTORIES
from headrace.streams.clickhouse.batches import unstorable
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.commits import TopicCommits
from headrace.streams.clickhouse.computed_tables import ComputedTables
from headrace.streams.clickhouse.cuts import deduplication_token, halves
from headrace.streams.clickhouse.database import RetryingClient, RowsRefused
from headrace.streams.clickhouse.pending import TakenBatch
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
        commits: TopicCommits,
        computed: ComputedTables,
    ) -> None:
        """``bootstrap``: where refused records are read again. ``producer`` sends dead letters and alerts. ``commits``
        knows the ids of the topics, which are part of the inserts' tokens. ``computed`` is told what was inserted.
        """
        self._bootstrap = bootstrap
        self._database = database
        self._producer = producer
        self._commits = commits
        self._computed = computed

    async def write(self, place: TopicPartition, taken: TakenBatch, slots: asyncio.Semaphore) -> None:
        """Insert the batch ``taken`` of ``place``, once one of ``slots`` is free; then send dead letters for what is in
        no table. Waits while ClickHouse does not answer; raises :class:`Stopped` if the sink stops meanwhile.
        """
        async with slots:
            batch = await asyncio.to_thread(taken.rows)
            refused: dict[int, str] = {}
            for table, rows in batch.tables:
                refused |= await self._insert(place, table, rows, taken.first, taken.end)
        originals = await originals_of(self._bootstrap, place, refused)
        unstored = batch.unstorable + [(record, unstorable(refused[record.offset])) for record in originals]
        dead_letters = [each for each in batch.unreadable if each[0].topic not in READ_BY_A_PROCESSOR] + unstored
        for record, error in batch.unreadable + unstored:
            log.warning("no row for %s[%d]@%d: %s", record.topic, record.partition, record.offset, error)
        for record, error in dead_letters:
            await (await send(self._producer, DEAD_LETTERS, dead_letter_message(record, error, source=SOURCE)))
        if unstored:
            alert = unstored_alert(place.topic, place.partition, taken.first, unstored)
            await (await send(self._producer, ALERTS, alert))

    async def _insert(
        self, place: TopicPartition, table: Table, rows: pa.Table, first: int, end: int
    ) -> dict[int, str]:
        """Insert ``rows`` of the batch ``[first, end)``. Returns the errors of refused records, by offset."""
        left, refused = [(rows, first, end)], dict[int, str]()
        topic_id = self._commits.topic_id(place)
        while left:
            part, begin, stop = left.pop()
            token = deduplication_token(place.topic, topic_id, place.partition, begin, stop, table)
            try:
                await self._database.insert(table, part, token)
            except RowsRefused as error:
                parts = halves(part)
                if parts is None:
                    refused[part.column("offset")[0].as_py()] = str(error)
                    continue
                middle = parts[1].column("offset")[0].as_py()
                left += [(parts[0], begin, middle), (parts[1], middle, stop)]
            else:
                self._computed.inserted(table, part)
        return refused
