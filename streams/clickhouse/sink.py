"""The sink: writes every topic that has a table to ClickHouse, in batches, exactly once, most rows visible within
about a second.

    read → columns → cuts → inserts, announced in the commits' metadata → Arrow inserts with tokens → commit

Offsets are committed after the insert, so nothing is lost; a repeated insert has the same ranges and the same token, so
nothing is written twice (:mod:`cuts` has the reasoning). While ClickHouse is unavailable the sink waits; Kafka keeps
the records.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaConnectionError, KafkaError, KafkaTimeoutError
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.waits import stopped_within
from headrace.schemas.topics import ALERTS
from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.batch_writer import BatchWriter
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.columns import arrow_table
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.computed_tables import ComputedTables
from headrace.streams.clickhouse.cuts import PlannedInsert, repeatable_end
from headrace.streams.clickhouse.database import RetryingClient, Stopped
from headrace.streams.clickhouse.event_rows import LAG as EVENTS_LAG
from headrace.streams.clickhouse.lag_row import lag_row
from headrace.streams.clickhouse.losses import loss_alert
from headrace.streams.clickhouse.pending import CHUNK_RECORDS, Pending, PendingPartitions
from headrace.streams.clickhouse.signs_of_life import give_signs
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.tables import LAG, STORED_TOPICS
from headrace.streams.clickhouse.trajectory_rows import LAG as TRAJECTORIES_LAG
from headrace.streams.clickhouse.unstored import SOURCE
from headrace.streams.clickhouse.write_cycle import LOST_PARTITION, AnnouncedInsert, WriteCycle
from headrace.streams.lag import ConsumerLag, LagMeter
from headrace.streams.lost_offset import deleted_alert
from headrace.streams.native.available import NOT_BUILT, SPEEDUPS

log = logging.getLogger(__name__)

_LINGER_WAITS = 6
"""Waits for records in the linger of a batch."""
_IDLE_S = 0.5
"""Longest pause between two reads, so that a long linger does not delay a stop."""
_RESTART_S = 1.0
"""Pause before a partition that could not be read is started again; it doubles while nothing can be read from it."""
_RESTART_MOST_S = 30.0
"""Longest such pause."""
_METADATA_S = 30.0
"""Time after which added partitions and recreated topics are noticed."""
_STOP_S = 10.0
"""Time for writing and committing what was read, once the sink is to stop. What is not committed is read again; an
announced insert is repeated exactly."""

_NOT_STARTED = (IllegalStateError, KafkaConnectionError, KafkaTimeoutError)
"""Errors of starting partitions after which it is tried again, as it is after those that a broker calls retriable: they
were reassigned, or Kafka does not answer."""


class _Sink:
    """The main loop and its state. While batches of some partitions are written, further records are read."""

    def __init__(
        self,
        config: SinkConfig,
        consumer: AIOKafkaConsumer,
        assigned: AssignedPartitions,
        commits: TopicCommits,
        producer: AIOKafkaProducer,
        held: PendingPartitions,
        cycle: WriteCycle,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._assigned = assigned
        self._commits = commits
        self._producer = producer
        self._held = held
        self._cycle = cycle
        self.rounds = 0
        """Number of iterations that ended."""
        self._restarts: dict[TopicPartition, float] = {}
        self._restart_pauses: dict[TopicPartition, float] = {}

    async def run_once(self) -> None:
        """One iteration: read some records, convert them, and start writing the batches that are full or old enough.
        Without a backlog, wait then.
        """
        if not self._is_loaded:
            await self._load_all()
        await self._restart()
        records = await self._assigned.read(CHUNK_RECORDS)
        if not self._is_loaded:
            return
        now = monotonic()
        for partition, batch in records.items():
            self._restart_pauses.pop(partition, None)
            self._held[partition].add(batch, now)
        for partition in records:
            pending = self._held[partition]
            while chunk := pending.chunk():
                pending.put(chunk, await asyncio.to_thread(convert, chunk))
        if not self._is_loaded:
            return
        self._cycle.write_due(now)
        if self._held_bytes() > self._config.buffer_bytes:
            if not self._cycle.is_writing:
                self._write_largest()
            await self._cycle.written()
        self.rounds += 1
        read = sum(map(len, records.values()))
        await asyncio.sleep(0 if read >= CHUNK_RECORDS else min(self._config.linger_s / _LINGER_WAITS, _IDLE_S))

    async def finish(self) -> None:
        """Write the remaining records."""
        await self._cycle.written()
        if self._is_loaded:
            self._cycle.write(_ends(self._held))

    @property
    def _is_loaded(self) -> bool:
        """Whether what is held belongs to the partitions that are assigned now."""
        return self._held.generation == self._assigned.generation

    def _held_bytes(self) -> int:
        return self._cycle.size + sum(pending.size for pending in self._held.values())

    def _write_largest(self) -> None:
        """Write the largest batch early: memory is full, and none is due."""
        for place, pending in sorted(self._held.items(), key=lambda held: -held[1].size):
            if cuts := _ends({place: pending}):
                self._cycle.write(cuts)
                return

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
        if due and not self._cycle.is_writing:
            # What was read before is written first: it may be in Kafka no longer.
            if cuts := _ends({place: self._held[place] for place in due if place in self._held}):
                self._cycle.write(cuts)
            elif await self._load(due):
                for place in due:
                    del self._restarts[place]
            else:
                self._restarts.update(dict.fromkeys(due, now + _RESTART_S))

    async def _load_all(self) -> None:
        """Start every assigned partition."""
        await self._cycle.written()
        generation = self._assigned.generation
        self._held.clear()
        self._cycle.forget()
        self._restarts.clear()
        self._commits.clear()
        await self._assigned.close()
        if await self._load(list(self._consumer.assignment())):
            self._held.generation = generation

    async def _load(self, places: Sequence[TopicPartition]) -> bool:
        """Start each of ``places`` whose topic exists at its committed offset, or behind the insert announced there,
        which is repeated. Nothing of theirs may be being written. Returns false if one was reassigned or Kafka does not
        answer.
        """
        try:
            commits = await self._commits.read(places)
            begins = await self._consumer.beginning_offsets(list(commits))
            ends = await self._consumer.end_offsets(list(commits))
            reported: dict[TopicPartition, Commit] = {}
            announced: dict[TopicPartition, AnnouncedInsert | None] = dict.fromkeys(commits)
            for place, commit in commits.items():
                # Without a commit the offset is −1. A commit outside of the log starts at the log start.
                at, begin, end = commit.offset, begins[place], ends[place]
                topic_id = self._commits.topic_id(place)
                repeated_to = repeatable_end(commit.ranges, place.partition, at, begin, end)
                if repeated_to is not None:
                    insert = PlannedInsert(place.topic, topic_id, commit.ranges)
                    announced[place] = AnnouncedInsert(insert, max(at, begin))
                if (alert := loss_alert(place, commit, begin, end, topic_id)) is not None:
                    await (await send(self._producer, ALERTS, alert.message))
                    reported[place] = Commit(begin, () if repeated_to is None else commit.ranges)
                first = repeated_to if repeated_to is not None else at if begin <= at <= end else begin
                self._held[place] = Pending(first, self._config.batch_records)
            if reported:  # with the log start committed, the next start finds nothing to report
                await self._commits.commit(reported)
            self._cycle.note_announced(announced)
            await self._assigned.start({place: self._held[place].first for place in commits})
        except KafkaError as error:
            if not (error.retriable or isinstance(error, (*_NOT_STARTED, *LOST_PARTITION))):
                raise
            log.info("partitions were not started, trying again: %s", error)
            return False
        return True

    async def watch_topics(self, stop: asyncio.Event) -> None:
        """Notice now and then which topics were deleted or created again, until ``stop`` is set."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_METADATA_S):
                    await stop.wait()
                    return
            await self._commits.look_at_topics()


def _ends(pending: Mapping[TopicPartition, Pending]) -> dict[TopicPartition, int]:
    """Returns where to cut each of ``pending`` now, full or not; without those that have nothing to write."""
    ends = {place: each.cut(early=True) for place, each in pending.items()}
    return {place: end for place, end in ends.items() if end is not None}


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
    for what, lag in (("events", EVENTS_LAG), ("trajectories", TRAJECTORIES_LAG)):
        if lag:
            log.warning(lag.warning(f"Python converts part of the {what}"))
    database = RetryingClient(
        config.clickhouse_url,
        secrets=config.clickhouse_secrets,
        stop=stop,
        retry_most_s=config.retry_most_s,
        cluster=config.cluster,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        try:
            await database.prepare()
            await database.set_prices(config.prices, config.currency)
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
                held = PendingPartitions()
                computed = ComputedTables(database)
                writer = BatchWriter(config.bootstrap, database, producer, computed)
                cycle = WriteCycle(config, held, assigned, commits, writer, tasks)
                sink = _Sink(config, consumer, assigned, commits, producer, held, cycle)
                consumer.subscribe([topic.name for topic in STORED_TOPICS], listener=assigned)
                tasks.create_task(sink.watch_topics(stop))
                tasks.create_task(give_signs(config, consumer, database, lambda: sink.rounds, commits.places, stop))
                tasks.create_task(computed.run(stop))
                tasks.create_task(meter.run(interval_s=config.lag_interval_s, stop=stop, write=write_lag))
                ready()
                while not stop.is_set():
                    await sink.run_once()
                await sink.finish()
                await computed.finish()
        except* Stopped:
            log.info("stopped while ClickHouse did not answer; the remaining records are read again at the next start")
