"""The assembler: ``events`` → ``trajectories``, exactly once, each partition by itself.

Kafka's group protocol says which partitions are this process's; for each a :class:`PartitionRunner` works. A partition
that goes is committed and its state dropped; one that comes is recovered from the log. A runner that fails ends the
process: the log has everything that the next one needs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from headrace.streams.native.available import SPEEDUPS

logger = logging.getLogger(__name__)

_DEFAULTS = FoldLimits()

_MAX_POLL_INTERVAL_MS = 2**31 - 1
"""A process without a partition polls nothing and must stay in the group all the same; heartbeats tell who lives."""


@dataclass(frozen=True, slots=True)
class AssemblerConfig:
    """Settings of one assembler process. Bounds of memory are for each partition."""

    bootstrap: str
    """Kafka, ``host:port``; several by comma."""
    group: str = "assemble"
    """Consumer group, and part of the transactional ids: processes that share the work share it."""
    member: str | None = None
    """Name of this process in the group: after a crash it has its partitions back at once instead of after the session
    timeout. One running process a name; unset: the broker names it."""
    commit_interval_s: float = 0.2
    """Seconds between two transactions of a partition."""
    idle_timeout_s: float = 600.0
    """A trajectory without an event for as long, in log time, is closed as ``no_end``."""
    hole_grace_s: float = 5.0
    """How long, in log time, an ended trajectory waits for events that are missing."""
    max_event_bytes: int = _DEFAULTS.max_event_bytes
    """Largest event: key, payload and headers. The SDK sends payloads of up to 1 MiB."""
    max_trajectory_bytes: int = _DEFAULTS.max_trajectory_bytes
    """Largest trajectory: memory that it takes."""
    max_trajectory_events: int = _DEFAULTS.max_trajectory_events
    """Bound of sequence numbers."""
    max_gaps: int = _DEFAULTS.max_gaps
    """Most gaps in a trajectory's sequence numbers."""
    max_open: int = _DEFAULTS.max_open
    """Most trajectories open at a time."""
    max_open_bytes: int = _DEFAULTS.max_open_bytes
    """Most memory of all open trajectories together; beyond it the largest are closed."""
    remember: int = _DEFAULTS.remember
    """Latest closed trajectories whose ids are remembered, to tell a duplicate from a new trajectory."""
    remember_bytes: int = _DEFAULTS.remember_bytes
    """Most memory of what is remembered; beyond it fewer are."""
    max_remembered: int = _DEFAULTS.max_remembered
    """A restart reads what was written since the oldest open trajectory began; at so many, that one is closed."""
    shares_output: bool = False
    """Another group's assembler writes to ``trajectories`` too. A start without a committed offset then takes what
    stands there for that group's, but for the last ``remember``; else for its own, whose offset the broker forgot."""
    trust_producers_time: bool = False
    """Start although ``events`` has the timestamps of its producers: one of them can then time out others' work."""

    def __post_init__(self) -> None:
        if self.commit_interval_s <= 0:
            raise ValueError(f"commit_interval_s must be above 0, not {self.commit_interval_s}")
        _ = self.limits  # checks the rest

    @property
    def limits(self) -> FoldLimits:
        """The bounds in the fold's terms."""
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
"""Says where every partition stands that is this process's at the moment; cheap enough to be asked every second."""


async def run_assembler(
    config: AssemblerConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    watch: Callable[[Statuses], None] | None = None,
) -> None:
    """Assemble until ``stop`` is set, then commit and return. ``ready`` is called once the first partitions are
    recovered; ``watch`` is called at the start, with what metrics ask.

    Raises ``TopicsError`` where a topic is missing or ``trajectories`` has other partitions than ``events``,
    ``WrongClockError`` where timestamps are not of the broker's clock, ``LostPlaceError`` where the broker forgot how
    far a partition was taken, ``PartitionTakenOver`` where another process fenced this one, and aiokafka's errors.
    """
    if SPEEDUPS is None:
        logger.warning(
            "headrace.streams.native was not built: assembling goes on at a fraction of its speed. "
            "Install a C++ compiler, then headrace again (or `make native` in a checkout)."
        )
    if LAG:
        logger.warning(
            "headrace.streams.native lags behind, so Python does a part of its work, at a fraction of the speed: %s. "
            "Run `make native`; where that changes nothing, its C++ is still to be written.",
            LAG,
        )
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
                f"partition p of one is assembled into partition p of the other, so give both as many"
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
    """Ask for records, of which there are none, as long as this process is in the group: who stops asking is taken for
    dead in the end, and what goes wrong with the membership is said to who asks.
    """
    while True:
        await consumer.getmany(timeout_ms=60_000)


class _Runners(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types here
    """The runners of the partitions that are this process's at the moment."""

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
        """Where each partition stands; those that are still recovering are left out."""
        found = (runner.status for runner in self._tasks.values())
        return [status for status in found if status is not None]

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commit and let go, while the partitions are still this process's."""
        await self.end()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Start a runner for each partition, which reads by itself: the consumer only says which they are."""
        partitions = sorted(assigned)
        self._consumer.pause(*partitions)
        for partition in partitions:
            runner = PartitionRunner(self._config, self._consumer, partition.partition)
            task = asyncio.create_task(runner.run(), name=f"assemble-{partition.partition}")
            task.add_done_callback(self._ended)
            self._tasks[task] = runner
        self._announcement = asyncio.create_task(self._announce(list(self._tasks.values())))

    async def end(self) -> None:
        """Let every runner commit, and wait for it. Failures of runners that are let go only cost work done twice."""
        runners, self._tasks = self._tasks, {}
        if self._announcement is not None:
            self._announcement.cancel()
        for runner in runners.values():
            runner.stop()
        for outcome in await asyncio.gather(*runners, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning("let go of a partition without a last commit: %s", outcome)

    async def _announce(self, runners: list[PartitionRunner]) -> None:
        for runner in runners:
            await runner.recovered.wait()
        if self._ready is not None:
            self._ready()
            self._ready = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A runner that ends before it is let go has failed, and the process with it."""
        if task not in self._tasks or self.failed.done():
            return
        error = None if task.cancelled() else task.exception()
        self.failed.set_exception(error or RuntimeError(f"{task.get_name()} ended by itself"))
