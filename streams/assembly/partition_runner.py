"""One ``events`` partition on Kafka: read, fold, and in one transaction write the output and commit the input.

Each partition has its own producer with a transactional ID that never changes. Starting it fences the previous owner
(its open transaction is aborted, its next one refused); only then are offsets fetched.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.kafka.expired import expired_range
from headrace.schemas.kafka.fenced_producer import FencedProducer, Transaction, open_fenced_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, TRAJECTORIES, Topic
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.lost_offset import check_written_trajectories, replaced
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.assembly.recovered_outputs import recovered_outputs
from headrace.streams.assembly.recovery import parse_commit_metadata
from headrace.streams.assembly.runner_status import RunnerStatus
from headrace.streams.assembly.tick import tick
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.assembly.undecided_dead_letters import were_committed
from headrace.streams.lost_offset import expired_alert
from headrace.streams.raw import Outgoing, to_send
from headrace.streams.reading.partition_reader import PartitionReader, open_reader
from headrace.streams.reading.unreadable_batch import unreadable_batch

logger = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_S = 0.01
"""Interval between polls of a log that has just had no new records; it grows by a tenth each time."""
_LONGEST_IDLE_S = 0.04
"""Longest of them. At the shortest, eight idle partitions take a hundredth of a core."""

_BATCH_BYTES = 2 * 1024 * 1024
"""Size of a batch of trajectories before compression; each batch is sent after the one before it."""

_SAME_PARTITION = (TRAJECTORIES, EVENTS)
"""Outputs of these topics go to the partition of the input; others to that of their key."""

_PENDING_BYTES = 8 * 1024 * 1024
"""Pending output at which a commit is made early."""

_COMMITS_SHARE = 1 / 5
"""Largest share of the time that transactions take, unless the interval would be longer than
:data:`_LONGEST_INTERVAL_S`. Each is five requests, which cost the broker as much as this process: on a busy machine
fewer, larger ones save more time than they add."""
_LONGEST_INTERVAL_S = 1.0
"""Longest interval between two transactions for that reason: with transactions above 200 ms it is this one."""

_TRANSACTION_TIMEOUT_MS = 20_000
"""How long readers wait for an assembler that died and was not restarted."""
_COMMIT_S = _TRANSACTION_TIMEOUT_MS / 1000 + 30
"""Limit of the wait for a transaction: the broker has aborted it by then."""


class PartitionTakenOver(RuntimeError):
    """Another process of the same group assembles this partition now."""


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Settings that the runners of a process share."""

    bootstrap: str
    group: str
    commit_interval_s: float
    limits: FoldLimits
    shares_output: bool = False


@dataclass(slots=True)
class _Commits:
    """Transactions of one runner."""

    done: int = 0
    failed: int = 0
    last_s: float = 0.0
    all_s: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around one transaction."""
        begin = time.monotonic()
        try:
            yield
        except BaseException:
            self.failed += 1
            raise
        self.done += 1
        self.last_s = time.monotonic() - begin
        self.all_s += self.last_s


class PartitionRunner:
    """Assembles one partition from :meth:`run` until :meth:`stop`."""

    def __init__(self, config: RunnerConfig, consumer: AIOKafkaConsumer, partition: int) -> None:
        self.recovered = asyncio.Event()
        """Set once the state of the last commit is restored and reading continues."""
        self._config = config
        self._consumer = consumer
        self._source = TopicPartition(EVENTS.name, partition)
        self._target = TopicPartition(TRAJECTORIES.name, partition)
        self._stopping = asyncio.Event()
        self._reader: PartitionReader | None = None
        self._assembly: PartitionAssembly | None = None
        self._commits = _Commits()
        self._topic_id = ""
        self._tick_offset = -1
        self._read_at = time.monotonic()
        self._committed_position = -1
        self._next_commit = 0.0

    def stop(self) -> None:
        """Stop reading, commit what was folded, and end."""
        self._stopping.set()

    @property
    def status(self) -> RunnerStatus | None:
        """Its status; ``None`` before it has recovered."""
        assembly, reader, commits = self._assembly, self._reader, self._commits
        if assembly is None or reader is None:
            return None
        fold = assembly.fold
        return RunnerStatus(
            partition=self._source.partition,
            position=assembly.position,
            log_end=reader.end,
            stream_ms=fold.stream_ms,
            open_trajectories=fold.open_count,
            oldest_open_ms=fold.oldest_open_ms,
            held_events=fold.held_events,
            held_bytes=fold.held_bytes,
            remembered_bytes=fold.remembered_bytes,
            duplicates=fold.duplicates,
            dead_letters=dict(assembly.dead_letters),
            trajectories=assembly.trajectories,
            native_fallbacks=assembly.native_fallbacks,
            commits=commits.done,
            commits_failed=commits.failed,
            last_commit_s=commits.last_s,
            all_commits_s=commits.all_s,
        )

    async def run(self) -> None:
        """Assemble until :meth:`stop`.

        Raises :class:`PartitionTakenOver` if another process fenced this one, and the clients' errors if the broker
        stays unavailable. The next owner of the partition repeats what was not committed.
        """
        name = f"headrace-{self._config.group}-{self._source.partition}"
        try:
            async with open_fenced_producer(
                self._config.bootstrap, name, timeout_ms=_TRANSACTION_TIMEOUT_MS, max_batch_size=_BATCH_BYTES
            ) as producer:
                assembly = await self._unless_stopped(self._recover(producer))
                if assembly is None:
                    return
                while await self._read_on(producer, assembly):
                    pass
        except ProducerFenced as error:
            raise PartitionTakenOver(
                f"another process with the group {self._config.group!r} took over {EVENTS.name}"
                f"[{self._source.partition}]: this one did not respond for too long, or runs twice under one name; or "
                "the broker was unavailable for longer than a transaction may take. Nothing is lost; restart it"
            ) from error
        finally:
            self._reader = None

    async def _read_on(self, producer: FencedProducer, assembly: PartitionAssembly) -> bool:
        """Assemble until :meth:`stop`; true if what cannot be read was skipped: an expired range, or a batch that
        cannot be decompressed.
        """
        async with open_reader(
            self._config.bootstrap, self._source.topic, self._source.partition, assembly.position
        ) as reader:
            self._assembly, self._reader = assembly, reader
            self.recovered.set()
            try:
                await self._assemble(producer, reader, assembly)
                return False
            except KafkaException as error:
                if await self._skip_expired(assembly, error):
                    return True
                skipped = await unreadable_batch(self._config.bootstrap, self._source, assembly.position, error)
                logger.error(
                    "%s[%d]: the batch at %d to %d cannot be decompressed and is skipped",
                    self._source.topic, self._source.partition, skipped.start, skipped.stop - 1,
                )  # fmt: skip
        assembly.skip(self._source, skipped)
        return True

    async def _skip_expired(self, assembly: PartitionAssembly, error: KafkaException) -> bool:
        """Continue at the log start if retention has deleted the next records, with an alert; open trajectories keep
        the events that were read. False if ``error`` is another one.
        """
        if error.args[0].code() != KafkaError._AUTO_OFFSET_RESET:
            return False
        begin = (await self._consumer.beginning_offsets([self._source]))[self._source]
        expired = expired_range(self._source, assembly.position, begin)
        if expired is None:
            await self._refuse_other_log(assembly.position, self._topic_id)
            return False
        assembly.warn(expired_alert(SOURCE, expired))
        assembly.position = begin
        return True

    async def _refuse_other_log(self, position: int, read_from: str) -> None:
        """Raise :class:`LostOffsetError`, after an alert, if the log is not the one that was read up to ``position``.

        ``read_from``: id of the topic that was read; empty if it is unknown.
        """
        end = (await self._consumer.end_offsets([self._source]))[self._source]
        ids = await topic_ids(self._config.bootstrap, [EVENTS.name])
        self._topic_id = ids.get(EVENTS.name, "")
        is_new = position > 0 and read_from not in ("", self._topic_id)
        if is_new or position > end:
            log = ReplacedLog(self._source, position, end)
            raise await replaced(self._config.bootstrap, self._config.group, log, self._topic_id, is_new=is_new)

    async def _recover(self, producer: FencedProducer) -> PartitionAssembly:
        """The assembly as of the last commit, after the predecessor's transaction was ended in every partition.

        A missing marker may belong to a transaction that was to be aborted. Its trajectories are byte for byte those
        that this process would write, so they are committed and known as written; a tick is harmless; for dead letters
        the commit's metadata decides.
        """
        started = time.monotonic()
        config = self._config
        commit = (await committed_offsets(config.bootstrap, config.group, [self._source]))[self._source]
        checkpoint = parse_commit_metadata(commit.metadata or "")
        letters_end = checkpoint.letters if checkpoint else 0 if commit.offset < 0 else -1
        await self._resolve(producer, [self._target, self._source], commit=True)
        letters = await producer.places_of([DEAD_LETTERS])
        stand = await were_committed(config.bootstrap, letters, self._source, letters_end)
        # An undecided alert is decided as the dead letters that it is about.
        await self._resolve(producer, [*letters, *await producer.places_of([ALERTS])], commit=stand)
        begin = (await self._consumer.beginning_offsets([self._source]))[self._source]
        await self._refuse_other_log(
            max(commit.offset, checkpoint.next if checkpoint else 0), checkpoint.topic if checkpoint else ""
        )
        # Without a commit this is the first start, or the broker has forgotten it: then all outputs must be known.
        place_lost = commit.offset < 0 and not config.shares_output
        first_output = checkpoint.output if checkpoint else 0 if place_lost else None
        outputs, output_end = await recovered_outputs(
            config.bootstrap, self._target, begin=first_output, remember=config.limits.remember
        )
        if place_lost:
            check_written_trajectories(config.limits, len(outputs), self._source)
        position = max(commit.offset, begin)
        logger.info(
            "%s[%d] continues at %d with %d closed trajectories known (%.1f s)",
            EVENTS.name, self._source.partition, position, len(outputs), time.monotonic() - started,
        )  # fmt: skip
        assembly = PartitionAssembly.resume(
            config.limits,
            checkpoint,
            outputs,
            position=position,
            output_end=output_end,
            letters_end=letters_end,
        )
        if (expired := expired_range(self._source, commit.offset, begin)) is not None:
            assembly.warn(expired_alert(SOURCE, expired, taken=checkpoint.next if checkpoint else None))
        return assembly

    async def _assemble(self, producer: FencedProducer, reader: PartitionReader, assembly: PartitionAssembly) -> None:
        idle_s = _IDLE_S
        while not self._stopping.is_set():
            records = reader.read()
            if records:
                self._read_at = time.monotonic()
                idle_s = _IDLE_S
            for _ in assembly.take_all(records):
                if assembly.pending_bytes > _PENDING_BYTES:
                    await self._commit(producer, assembly)
            # Also past transaction markers, which have offsets but no record and would otherwise count as lag.
            assembly.position = reader.position
            if time.monotonic() >= self._next_commit:
                await self._commit(producer, assembly)
            await asyncio.sleep(0 if records else idle_s)
            idle_s = min(_LONGEST_IDLE_S, 1.1 * idle_s)
        await self._commit(producer, assembly)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``, or ``None`` if :meth:`stop` comes first, because a rebalance waits for it."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.wait({working, stopping})
        return None if working.cancelled() else working.result()

    async def _commit(self, producer: FencedProducer, assembly: PartitionAssembly) -> None:
        """One transaction: outputs, a tick if one is due, and the offset with the metadata that a restart needs."""
        begun = time.monotonic()
        self._next_commit = begun + self._config.commit_interval_s
        tick = self._tick(assembly)
        if assembly.position == self._committed_position and not assembly.pending and tick is None:
            return
        with self._commits.timed():
            await producer.transact(
                lambda transaction: self._write(transaction, assembly, tick),
                within_s=_COMMIT_S,
                what=f"a transaction of {EVENTS.name}[{self._source.partition}]",
            )
        self._committed_position = assembly.position
        self._next_commit = begun + interval_s(self._config.commit_interval_s, self._commits.last_s)

    async def _write(self, transaction: Transaction, assembly: PartitionAssembly, tick: Outgoing | None) -> None:
        """The transaction of :meth:`_commit`."""
        outgoing = [*assembly.pending, tick] if tick else list(assembly.pending)
        records = [
            to_send(each, self._source.partition if each.topic in _SAME_PARTITION else None) for each in outgoing
        ]
        offsets: defaultdict[Topic, list[int]] = defaultdict(list)
        for each, stored_at in zip(outgoing, await transaction.send_all(records), strict=True):
            offsets[each.topic].append(stored_at)
        offset, checkpoint = assembly.sent(offsets[TRAJECTORIES], offsets[DEAD_LETTERS])
        metadata = msgspec.structs.replace(checkpoint, topic=self._topic_id).to_metadata()
        if tick is not None:
            (self._tick_offset,) = offsets[EVENTS]
        await transaction.commit_offsets({self._source: OffsetAndMetadata(offset, metadata)}, self._config.group)

    async def _resolve(self, producer: FencedProducer, places: Iterable[TopicPartition], *, commit: bool) -> None:
        """End a predecessor's transaction in ``places``."""
        what = f"the last transaction of {EVENTS.name}[{self._source.partition}]"
        await producer.resolve(places, commit=commit, within_s=_COMMIT_S, what=what)

    def _tick(self, assembly: PartitionAssembly) -> Outgoing | None:
        """A ``clock.ticked`` if the partition is silent and trajectories wait: see :mod:`fold_limits`.

        None before the last one was read: with a backlog, stream time advances by its records.
        """
        due_ms = tick_due_ms(assembly.fold, self._config.limits)
        silent_ms = (time.monotonic() - self._read_at) * 1000
        if due_ms is None or silent_ms < due_ms or assembly.position <= self._tick_offset:
            return None
        now_ms = time.time_ns() // 1_000_000
        return tick(now_ms, uuid7(now_ms))


def interval_s(shortest_s: float, last_s: float) -> float:
    """Seconds from the start of a transaction that took ``last_s`` to that of the next."""
    return max(shortest_s, min(_LONGEST_INTERVAL_S, last_s / _COMMITS_SHARE))


def tick_due_ms(fold: PartitionFold, limits: FoldLimits) -> int | None:
    """Milliseconds of silence after which a tick is due: well within what a gap counts for, and when the next
    trajectory times out. ``None`` if nothing waits.
    """
    deadline_ms = fold.deadline_ms
    if deadline_ms is None:
        return None
    step_ms = min(limits.grace_step_ms, limits.idle_step_ms) if fold.waits_for_gaps else limits.idle_step_ms
    return min(step_ms // 2, deadline_ms - fold.stream_ms)
