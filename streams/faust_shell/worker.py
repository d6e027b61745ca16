"""Runs a processor on Faust: Faust assigns partitions and reads; the :class:`Runtime` does everything else.

    Faust ──batch──▶ continuity check ──▶ Runtime.process ─┐
    timer ──clock──▶ stream time      ──▶ Runtime.advance ─┴▶ OwnedPartition.commit: one transaction a partition

The effects and offsets of a partition are committed in one transaction (:class:`OwnedPartition`), so every decision is
written exactly once, and a worker that was suspended while another acquired its partitions can write nothing when it
wakes up. An outage of Kafka is retried, and what was not committed is processed again (``outage.py``).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import faust

from headrace.schemas.kafka.waits import end_task
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, Topic
from headrace.streams.faust_shell.continuity import Continuity
from headrace.streams.faust_shell.faust_app import assigned_by_group, batches, lists_of, take_expired, take_replaced
from headrace.streams.faust_shell.outage import END_S, Outages
from headrace.streams.raw import LogRecord
from headrace.streams.runtime.owned_partition import (
    OwnedPartition,
    Ownership,
    acquire_all,
    create_state_topic,
    not_ours,
    release_all,
)
from headrace.streams.runtime.processor import Ask, Operator, Outside, PartitionsRevoked, Processor, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.runtime.state import set_aside_records
from headrace.streams.runtime.stream_time import CopartitionedClock, StreamClock

logger = logging.getLogger(__name__)

R = TypeVar("R")

TICK_S = 1.0
"""Interval at which stream time advances in idle partitions."""


def state_topic(processor: str) -> str:
    """The topic of the state of a processor."""
    return f"headrace-{processor}-state"


class ProcessorWorker(Generic[R]):
    """A processor on a Faust app."""

    def __init__(
        self,
        app: faust.App,
        bootstrap: str,
        processor: Processor[R],
        rules: R,
        *,
        partitions: Mapping[Topic, int],
        batch: int,
        outside: Outside,
        clock: StreamClock | None = None,
    ) -> None:
        """Put agents and timer on ``app``.

        ``partitions``: number of partitions of each input topic. ``batch`` records are read at a time. ``clock``: by
        default stream time is that of the slowest input topic. Raises :class:`TopicsError` if input topics differ in
        their number of partitions.
        """
        check_equal(processor.name, {topic: partitions[topic] for topic in processor.inputs(rules)})
        self.set_aside = 0
        """Entries of the state that could not be read, since the start."""
        self._app = app
        self._bootstrap = bootstrap
        self._processor = processor
        self._rules = rules
        self._partitions = partitions
        self._batch = batch
        self._reads = processor.inputs(rules)
        self._clock = clock or CopartitionedClock([topic.name for topic in self._reads])
        self._continuity = {topic.name: Continuity(app, bootstrap, topic) for topic in self._reads}
        self._outages = Outages(processor.name, self._lose)
        ask = outside.ask and partial(unless_revoked, self._outages.revoked, outside.ask)
        hook = processor.hook(rules, replace(outside, ask=ask)) if processor.hook else None
        self._runtime = Runtime(processor.source, hook, at_most=batch, revoked=self._outages.revoked)
        self._runtime.read.update(dict.fromkeys((topic.name for topic in self._reads), 0))
        self._runtime.written.update(dict.fromkeys((topic.name for topic in processor.writes), 0))
        self._owned: dict[int, OwnedPartition] = {}
        self._lock = asyncio.Lock()
        self._must_acquire = False
        self._lost = False
        self._reported: Counter[str] = Counter()
        for topic in self._reads:
            name = processor.name if topic is self._reads[0] else f"{processor.name}-{topic.name}"
            app.agent(lists_of(app, topic), name=name)(self._run)
        app.timer(interval=TICK_S)(self._tick)
        app.on_partitions_revoked.connect(self._revoke)
        app.on_before_shutdown.connect(self._revoke)
        app.on_rebalance_complete.connect(self._assign)

    @property
    def counts(self) -> Counter[str]:
        """Counts of the processor's operators since the start, for committed effects."""
        return self._runtime.counts

    @property
    def read(self) -> Counter[str]:
        """Records processed and committed since the start, by topic."""
        return self._runtime.read

    @property
    def written(self) -> Counter[str]:
        """Records written and committed since the start, by topic."""
        return self._runtime.written

    @property
    def operators(self) -> Mapping[int, Operator]:
        """The operators of the partitions that this process owns."""
        return self._runtime.operators

    async def caught_up(self, topic: str, partition: int) -> bool:
        """Whether every record in the partition was processed."""
        return await self._continuity[topic].caught_up(partition)

    async def has_taken(self, topic: str, partition: int, end: int) -> bool:
        """Whether everything before the offset ``end`` was processed."""
        return await self._continuity[topic].has_taken(partition, end)

    async def _run(self, stream: Any) -> None:
        async for records, generation in batches(self._app, stream, self._batch):
            async with self._lock:
                with suppress(PartitionsRevoked):
                    await self._outages.through(partial(self._process, records, generation))

    async def _process(self, batch: Sequence[LogRecord], generation: int) -> None:
        await self._acquire()
        if generation != self._app.consumer_generation_id:
            return  # read before a rebalance: they belong to the new owners of their partitions
        await self._note_losses()
        records: list[LogRecord] = []
        for record in batch:
            # Not the next: the previous owner committed it after Faust had read the committed offset.
            if record.partition in self._owned and await self._continuity[record.topic].is_next(record):
                self._clock.see(record)
                records.append(record)
        await self._runtime.process(records)

    async def _tick(self) -> None:
        """Advance stream time in idle partitions."""
        async with self._lock:
            try:
                await self._outages.through(self._advance)
            except PartitionsRevoked:
                return
        self._report()

    async def _advance(self) -> None:
        await self._acquire()
        await self._note_losses()
        for owned in self._owned.values():
            await owned.commit_alerts()
        waiting = {number: operator for number, operator in self._runtime.operators.items() if operator.waits}
        await self._runtime.advance(await self._clock.passed_ms(waiting, self))

    async def _note_losses(self) -> None:
        """Have alerts raised about records that retention deleted before Faust's client read them. Raises
        ``LostOffsetError`` if it found a log replaced: it, and Faust, would drop records up to its position.
        """
        for log in take_replaced(self._app):
            if (owned := self._owned.get(log.place.partition)) is not None:
                await owned.refuse(log)
        for expired in take_expired(self._app):
            if (owned := self._owned.get(expired.place.partition)) is not None:
                owned.note_expired(expired)

    def _report(self) -> None:
        """Log which limits were reached since the last report."""
        counts = sum((operator.limits_reached for operator in self._runtime.operators.values()), Counter[str]())
        if news := counts - self._reported:
            text = ", ".join(f"{name} {count}" for name, count in news.items())
            logger.warning("%s reached limits: %s", self._processor.name, text)
        self._reported = counts

    async def _acquire(self) -> None:
        """After a rebalance: acquire the assigned partitions at the offsets that their previous owners committed."""
        if not self._must_acquire:
            return
        processor, group = self._processor, str(self._app.conf.id)
        names = {topic.name for topic in self._reads}
        mine = {place for place in self._app.consumer.assignment() if place.topic in names}
        if self._lost and (elsewhere := mine - await assigned_by_group(self._app, self._bootstrap, names)):
            raise not_ours(group, {place.partition for place in elsewhere})
        first, *others = ({place.partition for place in mine if place.topic == topic.name} for topic in self._reads)
        if any(other != first for other in others):
            raise TopicsError(
                f"partitions {sorted(first)} of {self._reads[0].name} were assigned without those of "
                f"{', '.join(topic.name for topic in self._reads[1:])}: another worker of {processor.name} does not "
                "read it, or it got partitions while this one ran. Give all workers the same release and rewards, and "
                "restart them."
            )
        state = await create_state_topic(
            self._bootstrap,
            state_topic(processor.name),
            partitions=self._partitions[processor.reads[0]],
            about=processor.state,
        )
        writes = tuple(dict.fromkeys((*processor.writes, DEAD_LETTERS, ALERTS)))
        ownership = Ownership(self._bootstrap, group, self._reads, state, writes=writes)
        self._owned = await acquire_all(ownership, first)
        for number, owned in self._owned.items():
            start = Start(owned.state, self._partitions, outages=True)
            operator, aside = processor.restore(self._rules, start)
            owned.state.clear()
            self._runtime.assign(number, operator, owned)
            if aside:
                self.set_aside += len(aside)
                await owned.commit({}, {}, set_aside_records(aside, processor.source))
        self._clock.start(self._runtime.operators)
        for topic in self._reads:
            self._continuity[topic.name].begin(
                {number: owned.offsets.get(topic.name, 0) for number, owned in self._owned.items()}
            )
        self._must_acquire = self._lost = False

    async def _revoke(self, *_: Any, **__: Any) -> None:
        """Before a rebalance, and at the end: finish the current batch, or drop it if judges are being called."""
        self._outages.revoked.set()
        async with self._lock:
            await self._release()
            self._must_acquire = self._lost = False

    async def _assign(self, *_: Any, **__: Any) -> None:
        """After a rebalance: the assigned partitions are to be acquired."""
        self._outages.revoked.clear()
        self._must_acquire = True

    async def _lose(self) -> None:
        """During an outage: release the partitions, to acquire them again and repeat what is not committed."""
        await self._release()
        self._must_acquire = self._lost = True

    async def _release(self) -> None:
        for each in self._continuity.values():
            each.end()
        self._runtime.release()
        owned, self._owned = self._owned, {}
        await release_all(owned.values())


def check_equal(processor: str, counts: Mapping[Topic, int]) -> None:
    """Raise :class:`TopicsError` unless the input topics of ``processor`` have the same number of partitions."""
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{topic.name} has {count}" for topic, count in counts.items())
        raise TopicsError(
            f"{processor} reads topics with different numbers of partitions ({found}) but needs partition p of all of "
            "them. Add partitions to those with fewer, with kafka-topics.sh --alter, or recreate them, or leave "
            f"{processor} out of the option workers.processors."
        )


async def unless_revoked(revoked: asyncio.Event, ask: Ask, questions: Sequence[Any]) -> list[Any]:
    """The result of ``ask`` for ``questions``; raises :class:`PartitionsRevoked` as soon as ``revoked`` is set."""
    asking, ending = asyncio.ensure_future(ask(questions)), asyncio.ensure_future(revoked.wait())
    try:
        await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise PartitionsRevoked
        return asking.result()
    finally:
        ending.cancel()
        await end_task(asking, END_S)
