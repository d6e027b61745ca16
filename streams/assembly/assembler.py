"""The assembler: ``events`` → ``trajectories``, exactly once, each partition independently.

Kafka's group protocol assigns partitions to this process; a :class:`PartitionRunner` processes each. When a partition
is revoked, its runner commits and drops its state; when one is assigned, its state is recovered from Kafka. A runner
that fails ends the process: Kafka holds everything that the next process needs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_clock import check_clocks
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import EVENTS, TRAJECTORIES
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition_runner import PartitionRunner, RunnerConfig
from headrace.streams.assembly.runner_status import RunnerStatus
from headrace.streams.assembly.trajectory_writer import LAG
from headrace.streams.native.available import NOT_BUILT, SPEEDUPS

logger = logging.getLogger(__name__)

_DEFAULTS = FoldLimits()

_MAX_POLL_INTERVAL_MS = 2**31 - 1
"""A process without a partition does not poll, but must stay in the group; heartbeats detect dead members."""


@dataclass(frozen=True, slots=True)
class AssemblerConfig:
    """Settings of one assembler process. Memory bounds apply to each partition."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    group: str = "assemble"
    """Consumer group, and part of the transactional ids. Processes that share the work use the same group."""
    member: str | None = None
    """Static membership name of this process: after a crash it gets its partitions back immediately instead of after
    the session timeout. Each name belongs to one running process. Unset: the broker chooses a name."""
    commit_interval_s: float = 0.2
    """Seconds between two transactions of a partition, at least. Where they take long, it is up to 1 s."""
    idle_timeout_s: float = 600.0
    """Seconds of stream time without an event after which a trajectory is closed as ``no_end``."""
    hole_grace_s: float = 5.0
    """Seconds of stream time for which an ended trajectory waits for missing events."""
    max_event_bytes: int = _DEFAULTS.max_event_bytes
    """Largest event in bytes: key, payload and headers. The SDK sends payloads of up to 1 MiB."""
    max_trajectory_bytes: int = _DEFAULTS.max_trajectory_bytes
    """Largest trajectory in bytes of memory."""
    max_trajectory_events: int = _DEFAULTS.max_trajectory_events
    """Exclusive upper bound of sequence numbers."""
    max_gaps: int = _DEFAULTS.max_gaps
    """Most gaps in a trajectory's sequence numbers."""
    max_open: int = _DEFAULTS.max_open
    """Most trajectories open at a time."""
    max_open_bytes: int = _DEFAULTS.max_open_bytes
    """Most memory of all open trajectories together, in bytes; beyond it the largest are closed."""
    remember: int = _DEFAULTS.remember
    """Number of recently closed trajectories whose ids are remembered, to detect duplicate events."""
    remember_bytes: int = _DEFAULTS.remember_bytes
    """Most memory of the remembered trajectories, in bytes; beyond it fewer are remembered."""
    max_remembered: int = _DEFAULTS.max_remembered
    """Most trajectories that a restart must read, all closed since the oldest open one began; at this number the oldest
    open one is closed."""
    shares_output: bool = False
    """Whether another group's assembler also writes to ``trajectories``. Without a committed offset, this assembler
    then attributes existing records to that group, except the last ``remember``; otherwise it treats all of them as its
    own and the offset as expired."""
    trust_producers_time: bool = False
    """Start although ``events`` uses producer timestamps: one producer can then time out the trajectories of others."""

    def __post_init__(self) -> None:
        if not 0 < self.commit_interval_s < inf:  # with nan or inf nothing would be committed before the end
            raise ValueError(f"commit_interval_s must be a number above 0, not {self.commit_interval_s}")
        _ = self.limits  # checks the rest

    @property
    def limits(self) -> FoldLimits:
        """The limits of the fold."""
        return FoldLimits(
            idle_timeout_ms=round(self.idle_timeout_s * 1000),
            hole_grace_ms=round(self.hole_grace_s * 1000),
            max_event_bytes=self.max_event_bytes,
            max_trajectory_bytes=self.max_trajectory_bytes,
            max_trajectory_events=self.max_trajectory_events,
            max_gaps=self.max_gaps,
            max_open=self.max_open,
            max_open_bytes=self.max_open_bytes,
            remember=self.remember,
            remember_bytes=self.remember_bytes,
            max_remembered=self.max_remembered,
        )


Statuses: TypeAlias = Callable[[], list[RunnerStatus]]
"""Returns the status of every partition assigned to this process; cheap enough to call every second."""


async def run_assembler(
    config: AssemblerConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    watch: Callable[[Statuses], None] | None = None,
) -> None:
    """Assemble until ``stop`` is set, then commit and return. ``ready`` is called once the first partitions are
    recovered; ``watch`` is called at the start with the function that metrics read.

    Raises ``TopicsError`` if a topic is missing or ``trajectories`` and ``events`` differ in partitions,
    ``WrongClockError`` if timestamps are not set by the broker, ``LostOffsetError`` if the committed offset of a
    partition has expired, ``PartitionTakenOver`` if another process fenced this one, and aiokafka's errors.
    """
    if SPEEDUPS is None:
        logger.warning(NOT_BUILT)
    if LAG:
        logger.warning(LAG.warning("Python does part of its work, at a fraction of the speed"))
    async with open_consumer(
        config.bootstrap,
        group=config.group,
        group_instance_id=config.member,
        max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
    ) as consumer:
        partitions = [await partitions_of(consumer, topic) for topic in (EVENTS, TRAJECTORIES)]
        if len(partitions[0]) != len(partitions[1]):
            raise TopicsError(
                f"{EVENTS.name} has {len(partitions[0])} partitions and {TRAJECTORIES.name} {len(partitions[1])}: "
                f"partition p of one is assembled into partition p of the other, so both need the same number"
            )
        if not config.trust_producers_time:
            await check_clocks(config.bootstrap, (EVENTS, TRAJECTORIES), override="assemble.trust_producers_time")
        runners = _Runners(config, consumer, ready)
        if watch is not None:
            watch(runners.statuses)
        consumer.subscribe([EVENTS.name], listener=runners)
        stopping = asyncio.ensure_future(stop.wait())
        staying = asyncio.ensure_future(_stay(consumer))
        first: set[asyncio.Future[Any]] = {stopping, staying, runners.failed}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            staying.cancel()
            await runners.end()
        for ended in (runners.failed, staying):
            if ended.done() and not ended.cancelled():
                ended.result()


async def _stay(consumer: AIOKafkaConsumer) -> None:
    """Poll while this process is in the group, although all partitions are paused: a consumer that stops polling is
    eventually removed from the group, and membership errors are raised by the poll.
    """
    while True:
        await consumer.getmany(timeout_ms=60_000)


class _Runners(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types here
    """The runners of the partitions that are assigned to this process."""

    def __init__(self, config: AssemblerConfig, consumer: AIOKafkaConsumer, ready: Callable[[], None]) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Holds the first failure of a runner."""
        self._config = RunnerConfig(
            config.bootstrap, config.group, config.commit_interval_s, config.limits, config.shares_output
        )
        self._consumer = consumer
        self._ready: Callable[[], None] | None = ready
        self._tasks: dict[asyncio.Task[None], PartitionRunner] = {}
        self._announcement: asyncio.Task[None] | None = None

    def statuses(self) -> list[RunnerStatus]:
        """Returns the status of each partition, without those that are still recovering."""
        found = (runner.status for runner in self._tasks.values())
        return [status for status in found if status is not None]

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commit and release the partitions while this process still owns them."""
        await self.end()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Start a runner for each partition. Runners read with clients of their own; the consumer only assigns."""
        partitions = sorted(assigned)
        self._consumer.pause(*partitions)
        for partition in partitions:
            runner = PartitionRunner(self._config, self._consumer, partition.partition)
            task = asyncio.create_task(runner.run(), name=f"assemble-{partition.partition}")
            task.add_done_callback(self._ended)
            self._tasks[task] = runner
        self._announcement = asyncio.create_task(self._announce(list(self._tasks.values())))

    async def end(self) -> None:
        """Let every runner commit, and wait for it. If a stopping runner fails, its last work is only repeated."""
        runners, self._tasks = self._tasks, {}
        if self._announcement is not None:
            self._announcement.cancel()
        for runner in runners.values():
            runner.stop()
        for outcome in await asyncio.gather(*runners, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning("released a partition without a final commit: %s", outcome)

    async def _announce(self, runners: list[PartitionRunner]) -> None:
        for runner in runners:
            await runner.recovered.wait()
        if self._ready is not None:
            self._ready()
            self._ready = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail the process if a runner ends before it is stopped."""
        if task not in self._tasks or self.failed.done():
            return
        error = None if task.cancelled() else task.exception()
        self.failed.set_exception(error or RuntimeError(f"{task.get_name()} ended by itself"))
