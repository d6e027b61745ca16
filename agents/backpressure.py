"""Back-pressure: how far sampling may run ahead of training.

What was begun here and has no fate yet is *outstanding*. A sampler that begins new work only while

    outstanding + n ≤ limit,   limit = (max_staleness + 1) · trajectories a step

never samples what will be too stale to train (AReaL's admission rule), and waits when the trainer does. Rejected
trajectories make room as trained ones do: groups without a gradient must not starve the trainer.
"""

import asyncio
import logging
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from headrace.schemas.log import open_consumer, partitions_of
from headrace.schemas.model import Record
from headrace.schemas.records import Rejection, Step
from headrace.schemas.topics import REJECTED, STEPS
from headrace.schemas.wire import UnreadableRecord, decode

LOG = logging.getLogger(__name__)


class Outstanding:
    """Trajectories begun and not settled, by id: telling the same fact twice changes nothing."""

    def __init__(self, limit: int) -> None:
        """``limit``: most trajectories outstanding; raises ``ValueError`` below 1."""
        if limit < 1:
            raise ValueError(f"limit is {limit}: expected at least 1")
        self.limit = limit
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def started(self, trajectory_id: str) -> None:
        """A trajectory was begun. Ids are not used twice."""
        self._ids.add(trajectory_id)

    def settled(self, trajectory_id: str) -> bool:
        """A trajectory has its fate; whether it was outstanding. Those of other samplers do not concern us."""
        if trajectory_id not in self._ids:
            return False
        self._ids.remove(trajectory_id)
        return True

    def has_room(self, n: int) -> bool:
        """Whether ``n`` more may begin; raises ``ValueError`` where they never may."""
        if n > self.limit:
            raise ValueError(f"{n} trajectories do not fit under a limit of {self.limit} outstanding: raise the limit")
        return len(self._ids) + n <= self.limit


def settled_by(record: Record) -> list[str]:
    """The trajectories whose fate ``record`` tells: those of a step, or the one that was rejected."""
    if isinstance(record, Step):
        return [trajectory_id for group in record.groups for trajectory_id in group.trajectory_ids]
    return [record.trajectory_id] if isinstance(record, Rejection) else []


class Backpressure:
    """``Outstanding``, kept by the topics ``steps`` and ``rejected``. For one event loop, in an ``async with``."""

    def __init__(self, bootstrap: str, *, run: str, limit: int, report_after_s: float = 60.0) -> None:
        """``run``: training run, for the log lines. ``limit``: most trajectories outstanding. ``report_after_s``: how
        long there may be no room before that is said in the log, each time."""
        self._bootstrap = bootstrap
        self._run = run
        self._report_after_s = report_after_s
        self._outstanding = Outstanding(limit)
        self._changed = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None

    @property
    def outstanding(self) -> int:
        """Trajectories begun and not settled."""
        return len(self._outstanding)

    def started(self, trajectory_id: str) -> None:
        """A trajectory begins: say so before its first event is noted."""
        self._outstanding.started(trajectory_id)

    async def forget(self, trajectory_id: str) -> None:
        """A trajectory will never have a fate, because none of its events was sent."""
        async with self._changed:
            self._outstanding.settled(trajectory_id)
            self._changed.notify_all()

    async def room(self, n: int) -> None:
        """Wait until ``n`` more trajectories may begin. Nothing is reserved: one task asks and then begins them.

        Raises ``ValueError`` where ``n`` is over the limit and ``RuntimeError`` when the log can no longer be followed.
        """
        began = time.monotonic()
        async with self._changed:
            while not self._outstanding.has_room(n):
                if self._follower is None or self._follower.done():
                    raise RuntimeError(f"steps and rejected of {self._bootstrap} are not followed") from self._failure()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._report_after_s)
                    continue
                LOG.warning(
                    "run %s: no room for %d more for %.0f s, %d of %d trajectories have no fate yet: "
                    "is the trainer running? `headrace status` and `headrace ledger` tell",
                    self._run,
                    n,
                    time.monotonic() - began,
                    len(self._outstanding),
                    self._outstanding.limit,
                )

    def _failure(self) -> BaseException | None:
        if self._follower is None or self._follower.cancelled():
            return None
        return self._follower.exception()

    async def __aenter__(self) -> Self:
        """Begin to follow. Only what is settled from here on counts, so enter before the first trajectory begins."""
        following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._follower = asyncio.create_task(self._follow(following))
        await asyncio.wait([following, self._follower], return_when=asyncio.FIRST_COMPLETED)
        if self._follower.done():
            following.cancel()
            self._follower.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError, KafkaError, OSError):
                await self._follower

    async def _follow(self, following: "asyncio.Future[None]") -> None:
        try:
            async with open_consumer(self._bootstrap) as consumer:
                partitions = [*await partitions_of(consumer, STEPS), *await partitions_of(consumer, REJECTED)]
                consumer.assign(partitions)
                for partition, end in (await consumer.end_offsets(partitions)).items():
                    consumer.seek(partition, end)
                following.set_result(None)
                while True:
                    await self._take(consumer)
        finally:
            async with self._changed:
                self._changed.notify_all()  # whoever waits for room learns that it will not come

    async def _take(self, consumer: AIOKafkaConsumer) -> None:
        settled = False
        for records in (await consumer.getmany(timeout_ms=1_000)).values():
            for record in records:
                try:
                    _, payload = decode(record.headers, record.value)
                except UnreadableRecord as error:
                    LOG.warning("%s, partition %d, offset %d: %s", record.topic, record.partition, record.offset, error)
                    continue
                for trajectory_id in settled_by(payload):
                    settled |= self._outstanding.settled(trajectory_id)
        if settled:
            async with self._changed:
                self._changed.notify_all()
