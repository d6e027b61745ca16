"""Back-pressure: sampling waits for training, by what stands in the log.

    async with Backpressure("localhost:9092", run="search-7", limit=64) as backpressure:
        await backpressure.begin(trajectory_ids)  # waits until another group may begin, and counts it

For samplers of rollouts alone: an agent in production works for somebody who waits, and is never held up.

The topic ``budget`` says how much may be under way, ``steps`` and ``rejected`` what no longer is (``under_way``
has the rule). So a trainer that stands still holds samplers up, and one that goes on lets them go on; a run whose
trainer never granted a budget is bounded by the sampler's own limit alone. Rejected trajectories make room as trained
ones do: groups without a gradient must not starve the trainer.

Several samplers of a run divide the budget by their ``share``; where shares add up to more than 1, more is sampled than
can be fresh, and the trainer turns the excess away. No sampler can see that; the log shows it, and the dashboard's
trainer page says it: groups under way beside those granted. A sampler that starts again no longer counts what it had
begun.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headrace.agents.under_way import UnderWay, settled_by
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of
from headrace.schemas.model import Record
from headrace.schemas.records.step import Budget
from headrace.schemas.topics import BUDGET, REJECTED, STEPS
from headrace.schemas.wire import UnreadableRecord, decode

LOG = logging.getLogger(__name__)

READS = (BUDGET, STEPS, REJECTED)
"""Topics that a sampler reads: first the one that grants, then those that settle."""


class Backpressure:
    """``UnderWay``, kept by the topics ``budget``, ``steps`` and ``rejected``. For one event loop, in an
    ``async with``."""

    def __init__(
        self, bootstrap: str, *, run: str, limit: int, share: float = 1.0, report_after_s: float = 60.0
    ) -> None:
        """``run``: training run. ``limit``: most groups under way, whatever the budget. ``share``: part of the run's
        budget that is this sampler's. ``report_after_s``: how long there may be no room before that is said in the log,
        each time."""
        self._bootstrap = bootstrap
        self._run = run
        self._report_after_s = report_after_s
        self._under_way = UnderWay(limit, share)
        self._changed = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        """Groups begun and not settled."""
        return len(self._under_way)

    @property
    def allowed(self) -> int:
        """Most groups that may be under way at present."""
        return self._under_way.allowed

    async def begin(self, trajectory_ids: Collection[str]) -> None:
        """Wait until another group may begin, and count one of these trajectories as begun.

        Call it before the first of their events is noted. Raises ``RuntimeError`` when the log can no longer be
        followed.
        """
        began = time.monotonic()
        async with self._changed:
            while not self._under_way.has_room:
                if self._follower is None or self._follower.done():
                    raise RuntimeError(f"budget and fates at {self._bootstrap} are not followed") from self._failure()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._report_after_s):
                        await self._changed.wait()
                    continue
                self._report(time.monotonic() - began)
            self._under_way.begun(trajectory_ids)

    async def forget(self, trajectory_id: str) -> None:
        """A trajectory will never have a fate, because none of its events was sent."""
        async with self._changed:
            self._under_way.settled(trajectory_id)
            self._changed.notify_all()

    def _report(self, waited_s: float) -> None:
        if self.allowed:
            why = "is the trainer running? `headrace status` and `headrace ledger` tell"
        else:
            why = "the trainer has trained its last step (its setting steps)"
        LOG.warning(
            "run %s: no new group for %.0f s, %d of %d allowed ones are under way: %s",
            self._run, waited_s, self.under_way, self.allowed, why,
        )  # fmt: skip

    def _failure(self) -> BaseException | None:
        if self._follower is None or self._follower.cancelled():
            return None
        return self._follower.exception()

    async def __aenter__(self) -> Self:
        """Read the budget and begin to follow. Only what is settled from here on counts, so enter before the first
        group begins."""
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
                await self._take_position(consumer)
                following.set_result(None)
                while True:
                    await self._take(consumer)
        finally:
            async with self._changed:
                self._changed.notify_all()  # whoever waits for room learns that it will not come

    async def _take_position(self, consumer: AIOKafkaConsumer) -> None:
        """At the end of what settles, and at the end of ``budget`` once it is read."""
        budget, *settling = READS
        fates = [place for topic in settling for place in await partitions_of(consumer, topic)]
        budgets = await partitions_of(consumer, budget)
        consumer.assign([*fates, *budgets])
        ends = await consumer.end_offsets([*fates, *budgets])
        for partition in fates:
            consumer.seek(partition, ends[partition])
        await consumer.seek_to_beginning(*budgets)
        while await _is_behind(consumer, budgets, ends):
            await self._take(consumer)

    async def _take(self, consumer: AIOKafkaConsumer) -> None:
        changed = False
        for records in (await consumer.getmany(timeout_ms=1_000)).values():
            for record in records:
                payload = _readable(record)
                if isinstance(payload, Budget):
                    changed |= payload.run == self._run and self._under_way.granted(payload)
                elif payload is not None:
                    for trajectory_id in settled_by(payload):
                        changed |= self._under_way.settled(trajectory_id)
        if changed:
            async with self._changed:
                self._changed.notify_all()


async def _is_behind(
    consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition], ends: dict[TopicPartition, int]
) -> bool:
    return any([await consumer.position(partition) < ends[partition] for partition in partitions])


def _readable(record: KafkaRecord) -> Record | None:
    try:
        return decode(record.headers, record.value)[1]
    except UnreadableRecord as error:
        LOG.warning("%s, partition %d, offset %d: %s", record.topic, record.partition, record.offset, error)
        return None
