"""Back-pressure: sampling waits for training, controlled by the log.

    async with Backpressure("localhost:9092", run="search-7", limit=64) as backpressure:
        await backpressure.begin(trajectory_ids)  # waits until another group may begin, and counts it

It is only for rollout samplers: an agent in production serves a user and is never delayed.

The topic ``budget`` limits the number of open groups; the topics ``steps`` and ``rejected`` close groups
(``open_groups`` has the rule). So samplers stop while the trainer is stopped, and continue when it continues. Without a
budget from the trainer, only the sampler's own limit applies. Rejected trajectories make room just as trained ones do:
groups without a gradient must not starve the trainer.

Several samplers of a run divide the budget by their ``share``. If the shares add up to more than 1, samplers produce
more than can be trained while it is fresh, and the trainer rejects the excess. A sampler cannot detect that, but the
trainer page of the dashboard shows open groups next to granted ones. A restarted sampler does not count the groups of
its predecessor.

If retention deletes unread steps or rejections, for example while a sampler is frozen, groups that they concluded would
stay open for ever. So all open groups are closed: for a while too many may be sampled, and the trainer rejects those
that become stale. ``budget`` is compacted: its newest record stays, and older ones are superseded.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headrace.agents.open_groups import OpenGroups, ZeroVariance, concluded_by, is_without_gradient
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.kafka.expired import ExpiredRange, report_expired
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of
from headrace.schemas.model import Record
from headrace.schemas.records.step import Budget
from headrace.schemas.topics import BUDGET, REJECTED, STEPS, Topic
from headrace.schemas.wire import UnreadableRecord, decode

LOG = logging.getLogger(__name__)

READS = (BUDGET, STEPS, REJECTED)
"""Topics that back-pressure reads: first the one with budgets, then those that conclude trajectories."""


class Backpressure:
    """:class:`OpenGroups` that follow the topics ``budget``, ``steps`` and ``rejected``. For use in one event loop, in
    an ``async with``."""

    def __init__(
        self,
        bootstrap: str,
        *,
        run: str,
        limit: int,
        share: float = 1.0,
        report_after_s: float = 60.0,
        zero_variance: ZeroVariance = ZeroVariance.REFILL,
        feedback: Callable[[Record], None] | None = None,
        feedback_from: Collection[Topic] = (),
    ) -> None:
        """``run``: training run. ``limit``: largest number of open groups, whatever the budget. ``share``: this
        sampler's share of the run's budget. ``report_after_s``: interval of the log lines while no group may begin, in
        seconds. ``zero_variance``: what becomes of the place of a group without a gradient. ``feedback``: is called
        with every record of ``rejected``, and of the topics ``feedback_from`` that are followed besides, from the end
        on; it must not raise, and nothing waits for these records."""
        self._bootstrap = bootstrap
        self._run = run
        self._report_after_s = report_after_s
        self._groups = OpenGroups(limit, share, zero_variance)
        self._feedback = feedback
        self._feedback_from = tuple(feedback_from)
        self._changed = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None
        self._has_lost = False

    @property
    def open_groups(self) -> int:
        """Number of open groups."""
        return len(self._groups)

    @property
    def dropped(self) -> int:
        """Number of places of groups without a gradient that stay empty until the next version."""
        return self._groups.dropped

    @property
    def allowed(self) -> int:
        """Largest number of open groups at present."""
        return self._groups.allowed

    async def begin(self, trajectory_ids: Collection[str]) -> None:
        """Wait until another group may begin, and count a group of these trajectories as open.

        Call it before the first of their events is emitted. Raises ``RuntimeError`` if the topics can no longer be
        read.
        """
        async with self._changed:
            await self._room()
            self._groups.begin(trajectory_ids)

    async def room(self) -> None:
        """Wait until another group may begin, without counting one: for a sampler whose ids are made by the gateway.

        It calls :meth:`opened` as soon as it has them. Raises as :meth:`begin` does.
        """
        async with self._changed:
            await self._room()

    def opened(self, trajectory_ids: Collection[str]) -> None:
        """Count a group of these trajectories as open, after :meth:`room`; none of them may have ended yet."""
        self._groups.begin(trajectory_ids)

    async def forget(self, trajectory_id: str) -> None:
        """Stop counting a trajectory that will be neither trained nor rejected, because none of its events was sent."""
        async with self._changed:
            self._groups.conclude(trajectory_id)
            self._changed.notify_all()

    async def _room(self) -> None:
        began = time.monotonic()
        while not self._groups.has_room:
            if self._follower is None or self._follower.done():
                raise RuntimeError(
                    f"the topics {', '.join(topic.name for topic in READS)} at {self._bootstrap} cannot be read"
                ) from self._failure()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._report_after_s):
                    await self._changed.wait()
                continue
            self._report(time.monotonic() - began)

    def _report(self, waited_s: float) -> None:
        if self.allowed:
            why = "is the trainer running? See `headrace status` and `headrace ledger`"
        else:
            why = "the trainer has trained its last step (its setting steps)"
        LOG.warning(
            "run %s: no new group for %.0f s, %d of %d allowed groups are open: %s",
            self._run, waited_s, self.open_groups, self.allowed, why,
        )  # fmt: skip

    def _failure(self) -> BaseException | None:
        if self._follower is None or self._follower.cancelled():
            return None
        return self._follower.exception()

    async def __aenter__(self) -> Self:
        """Read the budget and start to follow the topics. Only steps and rejections after this point are seen, so enter
        before the first group begins."""
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
            async with open_consumer(self._bootstrap, on_expired=self._note_expired) as consumer:
                consumer.on_replaced = self._note_replaced
                await self._seek(consumer)
                following.set_result(None)
                while True:
                    await self._poll(consumer)
        finally:
            async with self._changed:
                self._changed.notify_all()  # waiting callers of begin() must raise

    async def _seek(self, consumer: AIOKafkaConsumer) -> None:
        """Seek to the end of ``steps`` and ``rejected``, and read ``budget`` up to its end."""
        budget, *concluding = READS
        followed = (*concluding, *self._feedback_from)
        conclusions = [place for topic in followed for place in await partitions_of(consumer, topic)]
        budgets = await partitions_of(consumer, budget)
        consumer.assign([*conclusions, *budgets])
        ends = await consumer.end_offsets([*conclusions, *budgets])
        for partition in conclusions:
            consumer.seek(partition, ends[partition])
        await consumer.seek_to_beginning(*budgets)
        while await _is_behind(consumer, budgets, ends):
            await self._poll(consumer)

    def _note_expired(self, expired: ExpiredRange) -> None:
        report_expired(f"back-pressure of {self._run}", expired)
        self._has_lost = True

    def _note_replaced(self, log: ReplacedLog) -> None:
        """The end of the former log may not have been read."""
        self._has_lost = True

    async def _poll(self, consumer: AIOKafkaConsumer) -> None:
        polled = await consumer.getmany(timeout_ms=1_000)
        changed = self._has_lost and self._groups.conclude_all()
        if changed:
            LOG.warning(
                "run %s: all open groups count as closed, because their ends may be among what was deleted", self._run
            )
        self._has_lost = False
        for records in polled.values():
            for record in records:
                payload = _readable(record)
                if isinstance(payload, Budget):
                    changed |= payload.run == self._run and self._groups.grant(payload)
                elif payload is not None:
                    without_gradient = is_without_gradient(payload)
                    for trajectory_id in concluded_by(payload):
                        changed |= self._groups.conclude(trajectory_id, without_gradient=without_gradient)
                    if self._feedback is not None:
                        self._feedback(payload)
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
