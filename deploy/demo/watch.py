"""Waits for steps, served versions and scored trajectories of a run, all read from Kafka."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer

from headrace.deploy.demo.summary import by_trajectory
from headrace.deploy.errors import StackError
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import ZERO_VARIANCE, Rejection
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.watch import Readings
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.topics import ALERTS, APPLIED, MONITORS, REJECTED, REWARDS, STEPS, WEIGHTS
from headrace.schemas.wire import UnreadableRecord, decode


@dataclass(slots=True)
class RunRecords:
    """The records of a run that were read so far."""

    steps: dict[int, Step] = field(default_factory=dict)
    published: set[int] = field(default_factory=set)
    applied: set[int] = field(default_factory=set)
    rewards: dict[str, Reward] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    readings: dict[tuple[str, ...], Readings] = field(default_factory=dict)
    zero_variance: set[str] = field(default_factory=set)
    """Groups since the newest step whose attempts all earned the same; to about a step's groups, because steps and
    rejections are read from two topics."""

    @property
    def served(self) -> int:
        """The newest version that an engine serves; −1 before the first."""
        return max(self.applied, default=-1)

    def add(self, record: object) -> None:
        """Add a record; idempotent."""
        match record:
            case Step():
                if record.step not in self.steps:
                    self.zero_variance.clear()
                self.steps[record.step] = record
            case Rejection(reason=reason, group_id=str(group)) if reason in ZERO_VARIANCE:
                self.zero_variance.add(group)
            case Weights():
                self.published.add(record.version)
            case Applied():
                self.applied.add(record.version)
            case Reward():
                self.rewards |= by_trajectory([record])
            case Alert():
                self.alerts.append(record)
            case Readings():
                key = (record.lane, record.agent, record.task_source, record.spec, str(record.window))
                self.readings[key] = record


class RunWatcher:
    """Keeps :class:`RunRecords` up to date. Created by :func:`watch_run`."""

    def __init__(self, run: str) -> None:
        self.records = RunRecords()
        self._run = run
        self._changed = asyncio.Condition()
        self._failure: BaseException | None = None

    async def until(self, holds: Callable[[RunRecords], bool], *, what: str, timeout_s: float) -> None:
        """Wait until ``holds``; raises :class:`StackError` that names ``what`` after ``timeout_s``, or if Kafka can no
        longer be read."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while not holds(self.records):
                    if self._failure is not None:
                        raise StackError(f"Kafka could not be read while waiting for {what}: {self._failure}.")
                    await self._changed.wait()
        except TimeoutError:
            alerts = "".join(f"\n  alert: {alert.message}" for alert in self.records.alerts[-3:])
            raise StackError(
                f"Waited {timeout_s:.0f} s for {what} without success: the parts' logs are in DATA/logs.{alerts}"
            ) from None

    async def until_scored(self, trajectory_ids: Collection[str], *, timeout_s: float) -> None:
        """Wait until every one of ``trajectory_ids`` has a reward record."""
        await self.until(
            lambda records: all(name in records.rewards for name in trajectory_ids),
            what=f"{len(trajectory_ids)} evaluation trajectories to be scored",
            timeout_s=timeout_s,
        )

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        try:
            while True:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        with suppress(UnreadableRecord):  # The stream workers report unreadable records.
                            payload = decode(record.headers, record.value)[1]
                            if getattr(payload, "run", None) == self._run:
                                self.records.add(payload)
                async with self._changed:
                    self._changed.notify_all()
        except Exception as error:
            self._failure = error
            async with self._changed:
                self._changed.notify_all()
            raise


@asynccontextmanager
async def watch_run(bootstrap: str, run: str) -> AsyncIterator[RunWatcher]:
    """Read the records of ``run`` from the first offset on, inside the block."""
    watch = RunWatcher(run)
    async with open_consumer(bootstrap) as consumer:
        topics = (STEPS, WEIGHTS, APPLIED, REWARDS, REJECTED, MONITORS, ALERTS)
        partitions = [partition for topic in topics for partition in await partitions_of(consumer, topic)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        following = asyncio.create_task(watch._follow(consumer))
        try:
            yield watch
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
