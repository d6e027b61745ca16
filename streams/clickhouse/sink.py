"""The sink: writes every topic that has a table to ClickHouse, in batches, exactly once, visible within a second
or, on a busy machine, two.

    read → columns → cut, announced in the commit's metadata → Arrow insert with a token → commit

Offsets are committed after the insert, so nothing is lost; a repeated batch has the same cut and the same token, so
nothing is written twice (:mod:`cuts` has the reasoning). While ClickHouse is unavailable the sink waits; Kafka keeps
the records.

A record that cannot be decoded becomes a dead letter, unless a processor of its topic already does that: `events`
(assemble), `trajectories` (score), `rewards` (group). Those, and damaged dead letters, are logged by the sink and have
no row.

A record that can be decoded but does not fit its table, or that ClickHouse refuses, becomes a dead letter with the
error `unstorable`, with one alert per batch; the rest of the batch is stored. Refused rows are found by bisecting the
insert. Each half has its own token, so a repeated batch is bisected identically.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of, scan
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Severity
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, REWARDS, TRAJECTORIES
from headrace.schemas.wire import Message, UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.batches import convert, unstorable
from headrace.streams.clickhouse.columns import Table, arrow_table
from headrace.streams.clickhouse.cuts import announced_cut, cut_metadata, deduplication_token, halves
from headrace.streams.clickhouse.database import RetryingClient, RowsRefused, Stopped
from headrace.streams.clickhouse.event_rows import LAG as NATIVE_LAG
from headrace.streams.clickhouse.lag_row import lag_row
from headrace.streams.clickhouse.pending import CHUNK_RECORDS, Pending, TakenBatch
from headrace.streams.clickhouse.tables import LAG, STORED_TOPICS
from headrace.streams.dead_letters.build import dead_letter_message, time_of
from headrace.streams.lag import ConsumerLag, LagMeter
from headrace.streams.lost_offset import expired_alert
from headrace.streams.raw import LogRecord

log = logging.getLogger(__name__)

SOURCE = "/streams/sink"
KIND = "record_unstorable"
"""Kind of the alert about records that ClickHouse cannot store."""

READ_BY_A_PROCESSOR = frozenset({EVENTS.name, TRAJECTORIES.name, REWARDS.name, DEAD_LETTERS.name})
"""Topics whose unreadable records a processor turns into dead letters, and the topic of dead letters itself."""

_LINGER_WAITS = 10
"""Waits for records in the linger of a batch."""
_PAUSE_LINGERS = 2.0
"""Longest pause between two writes, in lingers. It is as long as the first write took, so that a busy machine or a slow
ClickHouse gets fewer and larger inserts: each costs some 10 ms of processor time, whatever its size. Full batches are
written during the pause."""
_RESTART_S = 1.0
"""Pause before a partition that could not be read is started again; it doubles while nothing can be read from it."""
_RESTART_MOST_S = 30.0
"""Longest such pause."""

_LOST_PARTITION = (CommitFailedError, IllegalStateError, RebalanceInProgressError)
"""Errors of a commit or a seek once a partition belongs to another process."""


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """Settings of the sink."""

    bootstrap: str
    """Kafka address, host:port."""
    clickhouse_url: str
    """ClickHouse address, http://host:port."""
    clickhouse_secrets: Path | None = None
    """Folder with the embedded ClickHouse's passwords, for an address that names no user."""
    group: str = "sink"
    """Consumer group. A new name reads all topics from the start, to fill empty tables again."""
    member: str | None = None
    """Static membership name of this process: after a crash it gets its partitions back immediately instead of after
    the session timeout. Each name belongs to one running process. Unset: the broker chooses a name."""
    linger_s: float = 0.5
    """Seconds that a record waits for others before its batch is cut; up to twenty times as long while thousands more
    records are waiting in Kafka."""
    batch_records: int = 65_536
    """Full batches end at multiples of this many offsets; also the size of inserts per partition in a backlog."""
    buffer_bytes: int = 128 * 1024 * 1024
    """Bytes of records and columns in memory at which the largest batch is cut and reading pauses. The readers of
    `events` hold up to 8 MiB per partition in addition."""
    concurrent_inserts: int = 3
    """Partitions whose batches are converted and inserted concurrently."""
    lag_interval_s: float = 5.0
    """Seconds between two measurements of the consumer groups' lag."""
    retry_most_s: float = 10.0
    """Longest pause in seconds between two attempts while ClickHouse does not answer."""

    def __post_init__(self) -> None:
        for name in ("linger_s", "batch_records", "buffer_bytes", "concurrent_inserts", "lag_interval_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"the sink's setting {name} must be positive, not {getattr(self, name)}")


class _Sink:
    """The main loop and its state. While batches of some partitions are written, further records are read."""

    def __init__(
        self,
        config: SinkConfig,
        consumer: AIOKafkaConsumer,
        assigned: AssignedPartitions,
        producer: AIOKafkaProducer,
        database: RetryingClient,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._assigned = assigned
        self._producer = producer
        self._database = database
        self._tasks = tasks
        self._slots = asyncio.Semaphore(config.concurrent_inserts)
        self._pending: dict[TopicPartition, Pending] = {}
        self._writing: asyncio.Task[None] | None = None
        self._writing_bytes = 0
        self._pauses_until = 0.0
        self._loaded = -1
        self._restarts: dict[TopicPartition, float] = {}
        self._restart_pauses: dict[TopicPartition, float] = {}

    async def run_once(self) -> None:
        """One iteration: read some records, convert them, and start writing the batches that are full or old enough.
        Without a backlog, wait then.
        """
        if self._loaded != self._assigned.generation:
            await self._load_all()
        await self._restart_unreadable()
        records = await self._assigned.read(CHUNK_RECORDS)
        if self._loaded != self._assigned.generation:
            return
        now = monotonic()
        for partition, batch in records.items():
            self._restart_pauses.pop(partition, None)
            self._pending[partition].add(batch, now)
        for partition in records:
            pending = self._pending[partition]
            while chunk := pending.chunk():
                pending.put(chunk, await asyncio.to_thread(convert, chunk))
        if self._loaded != self._assigned.generation:
            return
        if self._writing is None and (cuts := self._cuts(now)):
            self._start_writing(cuts)
        if self._writing is not None and self._held_bytes() > self._config.buffer_bytes:
            await asyncio.wait({self._writing})
        read = sum(map(len, records.values()))
        await asyncio.sleep(0 if read >= CHUNK_RECORDS else self._config.linger_s / _LINGER_WAITS)

    async def finish(self) -> None:
        """Write the remaining records."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        ends = {place: pending.cut(early=True) for place, pending in self._pending.items()}
        cuts = {place: end for place, end in ends.items() if end is not None}
        if cuts and self._loaded == self._assigned.generation:
            self._start_writing(cuts)

    def _held_bytes(self) -> int:
        return self._writing_bytes + sum(pending.size for pending in self._pending.values())

    def _cuts(self, now: float) -> dict[TopicPartition, int]:
        """Returns the ends of the batches to write now. If memory is full and none is due, the largest batch is cut."""
        found: dict[TopicPartition, int] = {}
        for place, pending in self._pending.items():
            if pending.is_empty:
                continue
            is_due = now >= self._pauses_until and pending.is_due(now, self._config.linger_s, self._assigned.end(place))
            end = pending.cut(early=is_due)
            if end is not None:
                found[place] = end
        if not found and self._held_bytes() > self._config.buffer_bytes:
            for place, pending in sorted(self._pending.items(), key=lambda held: -held[1].size):
                if (end := pending.cut(early=True)) is not None:
                    return {place: end}
        return found

    async def _restart_unreadable(self) -> None:
        """Start partitions that could not be read again, each after a pause; the others are read meanwhile."""
        now = monotonic()
        for place, error in self._assigned.unreadable().items():
            pause = min(2 * self._restart_pauses.get(place, _RESTART_S / 2), _RESTART_MOST_S)
            self._restart_pauses[place], self._restarts[place] = pause, now + pause
            log.warning("%s[%d] is read again from its committed offset in %g s: %s", *place, pause, error)
        due = [place for place, at in self._restarts.items() if at <= now]
        if due and self._writing is None:
            for place in due:
                del self._restarts[place]
            await self._load(due)

    async def _load_all(self) -> None:
        """Start every assigned partition."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        generation = self._assigned.generation
        self._pending.clear()
        self._restarts.clear()
        await self._assigned.close()
        try:
            await self._load(list(self._consumer.assignment()))
        except IllegalStateError:
            return  # reassigned in the meantime: the next iteration loads again
        self._loaded = generation

    async def _load(self, places: Sequence[TopicPartition]) -> None:
        """Start each of ``places`` at its committed offset, with the cut announced there. Nothing of theirs may be
        being written. Raises ``IllegalStateError`` if one was reassigned.
        """
        if not places:
            return
        commits = await committed_offsets(self._config.bootstrap, self._config.group, places)
        begins = await self._consumer.beginning_offsets(places)
        ends = await self._consumer.end_offsets(places)
        for place in places:
            # Without a commit the offset is −1. A commit outside of the log starts at the log start.
            at, begin = commits[place].offset, begins[place]
            first = at if begin <= at <= ends[place] else begin
            if 0 <= at < begin:
                alert = expired_alert(SOURCE, place.topic, place.partition, at, at, begin)
                await (await send(self._producer, ALERTS, alert.message))
            elif at > first:
                log.error(
                    "%s[%d] ends at %d, and was written up to %d already: the topic was recreated, or its broker "
                    "lost records; the partition is read again from its start",
                    *place, ends[place], at,
                )  # fmt: skip
            announced = announced_cut(commits[place].metadata or "")
            self._pending[place] = Pending(
                first,
                self._config.batch_records,
                announced if announced is not None and announced > first else None,
            )
        await self._assigned.start({place: self._pending[place].first for place in places})

    def _start_writing(self, cuts: dict[TopicPartition, int]) -> None:
        """Write the batches that end at ``cuts`` in a separate task."""
        taken = {place: self._pending[place].take(end) for place, end in cuts.items()}
        self._writing_bytes = sum(batch.size for batch in taken.values())
        self._writing = self._tasks.create_task(self._write(taken))

    async def _write(self, batches: dict[TopicPartition, TakenBatch]) -> None:
        """Announce the cuts, insert the batches, commit. If a partition was reassigned meanwhile, reload all."""
        begun = monotonic()
        try:
            await self._consumer.commit(
                {place: (batch.first, cut_metadata(batch.end)) for place, batch in batches.items()}
            )
            async with asyncio.TaskGroup() as writers:
                # The smallest first: training records are visible before the events of the same second.
                for place, batch in sorted(batches.items(), key=lambda each: each[1].end - each[1].first):
                    writers.create_task(self._write_batch(place, batch))
            await self._consumer.commit(
                {place: (await self._written_to(place, batch.end), "") for place, batch in batches.items()}
            )
        except _LOST_PARTITION as error:
            log.info("partitions were reassigned during a write, reading again from the committed offsets: %s", error)
            self._loaded = -1
        finally:
            self._writing, self._writing_bytes = None, 0
            took = monotonic() - begun
            self._pauses_until = begun + took + min(took, _PAUSE_LINGERS * self._config.linger_s)

    async def _write_batch(self, place: TopicPartition, taken: TakenBatch) -> None:
        async with self._slots:
            batch = await asyncio.to_thread(taken.rows)
            refused: dict[int, str] = {}
            for table, rows in batch.tables:
                refused |= await self._insert(place, table, rows, taken.first, taken.end)
        originals = await originals_of(self._config.bootstrap, place, refused)
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
        while left:
            part, begin, stop = left.pop()
            token = deduplication_token(place.topic, place.partition, begin, stop, table)
            try:
                await self._database.insert(table, part, token)
            except RowsRefused as error:
                parts = halves(part)
                if parts is None:
                    refused[part.column("offset")[0].as_py()] = str(error)
                    continue
                middle = parts[1].column("offset")[0].as_py()
                left += [(parts[0], begin, middle), (parts[1], middle, stop)]
        return refused

    async def _written_to(self, place: TopicPartition, end: int) -> int:
        """Returns the offset to commit once everything before ``end`` is in the database."""
        pending = self._pending[place]
        # After a rebalance records may have been read and dropped: they are in front of the position.
        is_loaded = self._loaded == self._assigned.generation
        if is_loaded and pending.first == end and pending.is_empty:
            # Also past transaction markers, which use offsets without a record and would otherwise count as lag.
            pending.first = max(end, await self._assigned.position(place))
        return pending.first


async def originals_of(bootstrap: str, place: TopicPartition, offsets: Collection[int]) -> list[LogRecord]:
    """Read the records of ``place`` at ``offsets`` again from Kafka, in order."""
    if not offsets:
        return []
    found: list[LogRecord] = []
    start = {place.partition: min(offsets)}
    async with open_consumer(bootstrap) as consumer, aclosing(scan(consumer, [place], start=start)) as records:
        async for record in records:
            if record.offset in offsets:
                found.append(record)
            if record.offset >= max(offsets):
                break
    if missing := set(offsets) - {record.offset for record in found}:
        log.error("%s[%d]: the records at %s are no longer in Kafka, and are in no table", *place, sorted(missing))
    return found


def unstored_alert(
    topic: str, partition: int, first: int, unstored: Sequence[tuple[LogRecord, UnreadableRecord]]
) -> Message:
    """Returns the alert about records of the batch that starts at ``first``; a repeated batch gives the same id."""
    record, why = unstored[0]
    place = f"{topic}[{partition}]@{record.offset}"
    return alert_message(
        KIND,
        f"{len(unstored)} records are in no table of ClickHouse, the first is {place}: {why}"[:1000]
        + ". They are in dead-letters with all their bytes.",
        source=SOURCE,
        subject=place,
        time_ms=time_of(record),
        about=(topic, partition, first),
        severity=Severity.WARNING,
        details={"topic": topic, "partition": partition, "offset": record.offset, "records": len(unstored)},
    )


async def run_sink(config: SinkConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Write all topics to ClickHouse until ``stop`` is set; then write the remaining records, commit, and return.

    ``ready`` is called once the tables exist and the consumer is started. Raises ``LookupError`` if a topic is missing
    on the broker, and ``ValueError`` for an invalid address or a table with other columns.
    """
    if NATIVE_LAG:
        log.warning(NATIVE_LAG.warning("Python converts part of the events"))
    database = RetryingClient(
        config.clickhouse_url, secrets=config.clickhouse_secrets, stop=stop, retry_most_s=config.retry_most_s
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        try:
            await database.prepare()
            # The first Arrow array imports pandas, which takes seconds on a busy machine; without a thread no heartbeat
            # would be sent meanwhile.
            await asyncio.to_thread(arrow_table, LAG, [{}])
            consumer = await stack.enter_async_context(
                open_consumer(config.bootstrap, group=config.group, group_instance_id=config.member)
            )
            for topic in STORED_TOPICS:
                await partitions_of(consumer, topic)
            producer = await stack.enter_async_context(open_producer(config.bootstrap))
            meter = LagMeter(config.bootstrap)

            async def write_lag(measured: list[ConsumerLag], now_ms: int) -> None:
                rows = [lag_row(lag, now_ms) for lag in measured]
                try:
                    await database.insert_once(LAG, await asyncio.to_thread(arrow_table, LAG, rows), f"lag:{now_ms}")
                except ClickHouseError as error:
                    log.warning("the lag was not written: %s", error)

            assigned = AssignedPartitions(config.bootstrap, consumer)
            stack.push_async_callback(assigned.close)
            async with asyncio.TaskGroup() as tasks:
                sink = _Sink(config, consumer, assigned, producer, database, tasks)
                consumer.subscribe([topic.name for topic in STORED_TOPICS], listener=assigned)
                tasks.create_task(meter.run(interval_s=config.lag_interval_s, stop=stop, write=write_lag))
                ready()
                while not stop.is_set():
                    await sink.run_once()
                await sink.finish()
        except* Stopped:
            log.info("stopped while ClickHouse did not answer; the remaining records are read again at the next start")
