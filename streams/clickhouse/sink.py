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
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.waits import stopped_within
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, REWARDS, TRAJECTORIES
from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.batches import convert, unstorable
from headrace.streams.clickhouse.columns import Table, arrow_table
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.cuts import deduplication_token, halves, resumed_cut
from headrace.streams.clickhouse.database import RetryingClient, RowsRefused, Stopped
from headrace.streams.clickhouse.event_rows import LAG as NATIVE_LAG
from headrace.streams.clickhouse.lag_row import lag_row
from headrace.streams.clickhouse.losses import loss_alert
from headrace.streams.clickhouse.pending import CHUNK_RECORDS, Pending, TakenBatch
from headrace.streams.clickhouse.tables import LAG, STORED_TOPICS
from headrace.streams.clickhouse.unstored import SOURCE, originals_of, unstored_alert
from headrace.streams.dead_letters.build import dead_letter_message
from headrace.streams.lag import ConsumerLag, LagMeter
from headrace.streams.lost_offset import deleted_alert
from headrace.streams.native.available import NOT_BUILT, SPEEDUPS

log = logging.getLogger(__name__)

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

_MOST_S = 3600.0
"""Longest of all times that can be set."""
_MOST = {"batch_records": 1_048_576, "buffer_bytes": 64 * 1024**3, "concurrent_inserts": 64}
"""Largest of the numbers that can be set."""
_IDLE_S = 0.5
"""Longest pause between two reads, so that a long linger does not delay a stop."""
_PASSED_S = 5.0
"""Time without a write after which positions are committed that have passed offsets without records."""
_METADATA_S = 30.0
"""Time after which added partitions and recreated topics are noticed."""
_STOP_S = 10.0
"""Time for writing and committing what was read, once the sink is to stop. What is not committed is read again; an
announced batch is repeated exactly."""

_LOST_PARTITION = (CommitFailedError, IllegalStateError, RebalanceInProgressError)
"""Errors of a commit or a seek once a partition belongs to another process."""
_NOT_STARTED = (IllegalStateError, KafkaConnectionError, KafkaTimeoutError)
"""Errors of starting partitions after which it is tried again: they were reassigned, or Kafka does not answer."""


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
        for name in ("linger_s", "lag_interval_s", "retry_most_s"):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"the sink's setting {name} must be positive, not {value}")
            if not value <= _MOST_S:
                raise ValueError(f"the sink's setting {name} must be at most {_MOST_S:g} seconds, not {value}")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"the sink's setting {name} must be a whole number from 1 to {most}, not {value!r}")
        if not self.group.strip():
            raise ValueError("the sink's setting group must not be empty: it names the consumer group")


class _Sink:
    """The main loop and its state. While batches of some partitions are written, further records are read."""

    def __init__(
        self,
        config: SinkConfig,
        consumer: AIOKafkaConsumer,
        assigned: AssignedPartitions,
        commits: TopicCommits,
        producer: AIOKafkaProducer,
        database: RetryingClient,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._assigned = assigned
        self._commits = commits
        self._producer = producer
        self._database = database
        self._tasks = tasks
        self._slots = asyncio.Semaphore(config.concurrent_inserts)
        self._pending: dict[TopicPartition, Pending] = {}
        self._writing: asyncio.Task[None] | None = None
        self._writing_bytes = 0
        self._pauses_until = 0.0
        self._passed_at = 0.0
        self._loaded = -1
        self._restarts: dict[TopicPartition, float] = {}
        self._restart_pauses: dict[TopicPartition, float] = {}

    async def run_once(self) -> None:
        """One iteration: read some records, convert them, and start writing the batches that are full or old enough.
        Without a backlog, wait then.
        """
        if self._loaded != self._assigned.generation:
            await self._load_all()
        await self._restart()
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
        if self._writing is None and ((cuts := self._cuts(now)) or now >= self._passed_at):
            self._start_writing(cuts)
        if self._writing is not None and self._held_bytes() > self._config.buffer_bytes:
            await asyncio.wait({self._writing})
        read = sum(map(len, records.values()))
        await asyncio.sleep(0 if read >= CHUNK_RECORDS else min(self._config.linger_s / _LINGER_WAITS, _IDLE_S))

    async def finish(self) -> None:
        """Write the remaining records."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        ends = {place: pending.cut(early=True) for place, pending in self._pending.items()}
        cuts = {place: end for place, end in ends.items() if end is not None}
        if self._loaded == self._assigned.generation:
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

    async def _restart(self) -> None:
        """Start partitions that could not be read again, each after a pause, and those whose topic was created again;
        the others are read meanwhile.
        """
        now = monotonic()
        for place, error in self._assigned.unreadable().items():
            pause = min(2 * self._restart_pauses.get(place, _RESTART_S / 2), _RESTART_MOST_S)
            self._restart_pauses[place], self._restarts[place] = pause, now + pause
            log.warning("%s[%d] is read again from its committed offset in %g s: %s", *place, pause, error)
        if recreated := self._commits.take_recreated():
            await self._assigned.stop(recreated)
            self._restarts.update(dict.fromkeys(recreated, now))
        due = [place for place, at in self._restarts.items() if at <= now]
        if due and self._writing is None:
            # What was read before is written first: it may be in Kafka no longer.
            held = {place: pending for place in due if (pending := self._pending.get(place)) is not None}
            ends = {place: pending.cut(early=True) for place, pending in held.items()}
            if cuts := {place: end for place, end in ends.items() if end is not None}:
                self._start_writing(cuts)
            elif await self._load(due):
                for place in due:
                    del self._restarts[place]
            else:
                self._restarts.update(dict.fromkeys(due, now + _RESTART_S))

    async def _load_all(self) -> None:
        """Start every assigned partition."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        generation = self._assigned.generation
        self._pending.clear()
        self._restarts.clear()
        self._commits.clear()
        await self._assigned.close()
        if await self._load(list(self._consumer.assignment())):
            self._loaded = generation

    async def _load(self, places: Sequence[TopicPartition]) -> bool:
        """Start each of ``places`` whose topic exists at its committed offset, with the cut announced there. Nothing of
        theirs may be being written. Returns false if one was reassigned or Kafka does not answer.
        """
        try:
            commits = await self._commits.read(places)
            begins = await self._consumer.beginning_offsets(list(commits))
            ends = await self._consumer.end_offsets(list(commits))
            reported: dict[TopicPartition, Commit] = {}
            for place, commit in commits.items():
                # Without a commit the offset is −1. A commit outside of the log starts at the log start.
                at, begin, end = commit.offset, begins[place], ends[place]
                announced = resumed_cut(commit.cut, at, begin, end)
                if announced is not None:
                    first = at if commit.first is None else commit.first
                else:
                    first = at if begin <= at <= end else begin
                if (alert := loss_alert(place, commit, begin, end, self._commits.topic_id(place))) is not None:
                    await (await send(self._producer, ALERTS, alert.message))
                    reported[place] = Commit(begin, announced, first if first < begin else None)
                self._pending[place] = Pending(first, self._config.batch_records, announced)
            if reported:  # with the log start committed, the next start finds nothing to report
                await self._commits.commit(reported)
            await self._assigned.start({place: max(self._pending[place].first, begins[place]) for place in commits})
        except (*_NOT_STARTED, *_LOST_PARTITION) as error:
            log.info("partitions were not started, trying again: %s", error)
            return False
        return True

    def _start_writing(self, cuts: dict[TopicPartition, int]) -> None:
        """Write the batches that end at ``cuts``, and commit, in a separate task."""
        self._passed_at = monotonic() + _PASSED_S
        taken = {place: self._pending[place].take(end) for place, end in cuts.items()}
        self._writing_bytes = sum(batch.size for batch in taken.values())
        self._writing = self._tasks.create_task(self._write(taken))

    async def _write(self, batches: dict[TopicPartition, TakenBatch]) -> None:
        """Announce the cuts, insert the batches, commit. If a partition was reassigned meanwhile, reload all."""
        begun = monotonic()
        try:
            new = {place: batch for place, batch in batches.items() if not batch.is_announced}
            await self._commits.commit({place: Commit(batch.first, batch.end) for place, batch in new.items()})
            async with asyncio.TaskGroup() as writers:
                # The smallest first: training records are visible before the events of the same second.
                for place, batch in sorted(batches.items(), key=lambda each: each[1].end - each[1].first):
                    writers.create_task(self._write_batch(place, batch))
            written = {place: Commit(batch.end) for place, batch in batches.items()}
            await self._commits.commit(written | await self._passed())
        except _LOST_PARTITION as error:
            log.info("partitions were reassigned during a write, reading again from the committed offsets: %s", error)
            self._loaded = -1
        finally:
            self._writing, self._writing_bytes = None, 0
            took = monotonic() - begun
            self._pauses_until = begun + took + min(took, _PAUSE_LINGERS * self._config.linger_s)

    async def watch_topics(self, stop: asyncio.Event) -> None:
        """Notice now and then which topics were deleted or created again, until ``stop`` is set."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_METADATA_S):
                    await stop.wait()
                    return
            await self._commits.look_at_topics()

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
        return refused

    async def _passed(self) -> dict[TopicPartition, Commit]:
        """Returns the commits for partitions of which everything that was read is written: past transaction markers and
        aborted records too. Their offsets would otherwise count as lag, and as unread once they expire.
        """
        found: dict[TopicPartition, Commit] = {}
        # After a rebalance records may have been read and dropped: they are in front of the position.
        if self._loaded == self._assigned.generation:
            for place, pending in list(self._pending.items()):
                position = await self._assigned.position(place)
                if pending.is_written_to(position):
                    pending.first = position
                    found[place] = Commit(position)
        return found


async def run_sink(config: SinkConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Write all topics to ClickHouse until ``stop`` is set; then write the remaining records, commit, and return.

    ``ready`` is called once the tables exist and the consumer is started. If Kafka or ClickHouse does not answer, it
    returns some seconds after ``stop`` nevertheless. Raises ``LookupError`` if a topic is missing on the broker, and
    ``ValueError`` for an invalid address or a table with other columns.
    """
    try:
        async with stopped_within(_STOP_S, stop):
            await _run(config, stop, ready)
    except TimeoutError:
        if not stop.is_set():
            raise
        log.warning("stopped before everything that was read was committed: the next start reads it again")


async def _run(config: SinkConfig, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """As :func:`run_sink`, without a limit for stopping."""
    if SPEEDUPS is None:
        log.warning(NOT_BUILT)
    if NATIVE_LAG:
        log.warning(NATIVE_LAG.warning("Python converts part of the events"))
    database = RetryingClient(
        config.clickhouse_url, secrets=config.clickhouse_secrets, stop=stop, retry_most_s=config.retry_most_s
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        try:
            await database.prepare()
            # The first Arrow array imports pandas, unless it is hidden (without_pandas.py). On a busy machine it takes
            # seconds; without a thread no heartbeat would be sent meanwhile.
            await asyncio.to_thread(arrow_table, LAG, [{}])
            consumer = await stack.enter_async_context(
                open_consumer(
                    config.bootstrap,
                    group=config.group,
                    group_instance_id=config.member,
                    metadata_max_age_ms=int(_METADATA_S * 1000),
                    auto_offset_reset="none",
                )
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

            async def report_deleted(topic: str, topic_id: str) -> None:
                alert = deleted_alert(SOURCE, topic, topic_id)
                log.error(
                    "the topic %s was deleted: what was read of it is written, and the sink continues with the others",
                    topic,
                )
                await (await send(producer, ALERTS, alert.message))

            assigned = AssignedPartitions(config.bootstrap, consumer)
            commits = TopicCommits(config.bootstrap, config.group, consumer, report_deleted)
            stack.push_async_callback(assigned.close)
            async with asyncio.TaskGroup() as tasks:
                sink = _Sink(config, consumer, assigned, commits, producer, database, tasks)
                consumer.subscribe([topic.name for topic in STORED_TOPICS], listener=assigned)
                tasks.create_task(sink.watch_topics(stop))
                tasks.create_task(meter.run(interval_s=config.lag_interval_s, stop=stop, write=write_lag))
                ready()
                while not stop.is_set():
                    await sink.run_once()
                await sink.finish()
        except* Stopped:
            log.info("stopped while ClickHouse did not answer; the remaining records are read again at the next start")
