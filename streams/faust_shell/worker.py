"""Runs a processor on Faust: Faust assigns partitions and reads, the :class:`Runtime` does everything else.

    Faust ──batch──▶ continuity check ──▶ Runtime.process ─┐
    timer ──clock──▶ stream time      ──▶ Runtime.advance ─┴▶ OwnedPartition.commit: one transaction a partition

A partition's effects and offsets are committed in one transaction (:class:`OwnedPartition`), so what is decided is
written exactly once, and a worker that was suspended while another took its partitions can write nothing when it wakes
up. While Kafka is away it is retried, and what was not committed is processed again (``outage.py``).
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
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, Topic
from headrace.streams.faust_shell.continuity import Continuity
from headrace.streams.faust_shell.faust_app import assigned_by_group, batches, current, raw_topic, stored_record
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
"""How often stream time is looked at."""


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

        ``partitions``: how many each topic has, at least ``processor.reads[0]``. ``batch`` records are read at a time.
        ``clock``: by default stream time is as far as the slowest of the topics that are read.
        """
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
        self._assigned_anew = False
        self._lost = False
        self._reported: Counter[str] = Counter()
        for topic in self._reads:
            name = processor.name if topic is self._reads[0] else f"{processor.name}-{topic.name}"
            app.agent(raw_topic(app, topic), name=name)(self._run)
        app.timer(interval=TICK_S)(self._tick)
        app.on_partitions_revoked.connect(self._revoke)
        app.on_before_shutdown.connect(self._revoke)
        app.on_rebalance_complete.connect(self._assign)

    @property
    def counts(self) -> Counter[str]:
        """What the processor's operators counted of what is committed, since the start."""
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
        """What works on the partitions that are this process's."""
        return self._runtime.operators

    async def caught_up(self, topic: str, partition: int) -> bool:
        """Whether everything that stands in the partition was processed."""
        return await self._continuity[topic].caught_up(partition)

    async def has_taken(self, topic: str, partition: int, end: int) -> bool:
        """Whether everything before the offset ``end`` was processed."""
        return await self._continuity[topic].has_taken(partition, end)

    async def _run(self, stream: Any) -> None:
        async for events in batches(stream, self._batch):
            async with self._lock:
                with suppress(PartitionsRevoked):
                    await self._outages.through(partial(self._process, events))

    async def _process(self, events: list[faust.Event]) -> None:
        await self._acquire()
        ours = [event for event in current(self._app, events) if event.message.partition in self._owned]
        records: list[LogRecord] = []
        for record in map(stored_record, ours):
            # What the former owner committed after Faust had asked for the committed offset.
            if record.offset >= self._owned[record.partition].offsets.get(record.topic, 0):
                await self._continuity[record.topic].check(record)
                self._clock.see(record)
                records.append(record)
        await self._runtime.process(records)
        for event in ours:
            event.ack()

    async def _tick(self) -> None:
        """Let stream time go on where nothing flows."""
        async with self._lock:
            try:
                await self._outages.through(self._advance)
            except PartitionsRevoked:
                return
        self._report()

    async def _advance(self) -> None:
        await self._acquire()
        waiting = {number: operator for number, operator in self._runtime.operators.items() if operator.waits}
        await self._runtime.advance(await self._clock.passed_ms(waiting, self))

    def _report(self) -> None:
        """What reached a limit since it was last reported, in the log."""
        counts = sum((operator.limits_reached for operator in self._runtime.operators.values()), Counter[str]())
        if news := counts - self._reported:
            text = ", ".join(f"{name} {count}" for name, count in news.items())
            logger.warning("%s reached limits: %s", self._processor.name, text)
        self._reported = counts

    async def _acquire(self) -> None:
        """After a rebalance: acquire the partitions that are ours now, each from where its last owner got to."""
        if not self._assigned_anew:
            return
        processor, group = self._processor, str(self._app.conf.id)
        names = {topic.name for topic in self._reads}
        mine = {place for place in self._app.consumer.assignment() if place.topic in names}
        if self._lost and (elsewhere := mine - await assigned_by_group(self._app, self._bootstrap, names)):
            raise not_ours(group, {place.partition for place in elsewhere})
        first, *others = ({place.partition for place in mine if place.topic == topic.name} for topic in self._reads)
        if any(other != first for other in others):
            raise RuntimeError(
                f"partitions {sorted(first)} of {self._reads[0].name} came without those of "
                f"{', '.join(topic.name for topic in self._reads[1:])}: another worker of {processor.name} does not "
                "read it. Give all of them the same rewards."
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
        self._assigned_anew = self._lost = False

    async def _revoke(self, *_: Any, **__: Any) -> None:
        """Before a rebalance, and at the end: finish the batch in hand, or drop it where judges are at it."""
        self._outages.revoked.set()
        async with self._lock:
            await self._release()
            self._assigned_anew = self._lost = False

    async def _assign(self, *_: Any, **__: Any) -> None:
        """After a rebalance: the partitions of the assignment are ours."""
        self._outages.revoked.clear()
        self._assigned_anew = True

    async def _lose(self) -> None:
        """While Kafka is away: release the partitions, to acquire them again and repeat what is not committed."""
        await self._release()
        self._assigned_anew = self._lost = True

    async def _release(self) -> None:
        for each in self._continuity.values():
            each.end()
        self._runtime.release()
        owned, self._owned = self._owned, {}
        await release_all(owned.values())


async def unless_revoked(revoked: asyncio.Event, ask: Ask, questions: Sequence[Any]) -> list[Any]:
    """What ``ask`` gives for ``questions``; raises :class:`PartitionsRevoked` as soon as ``revoked`` is set."""
    asking, ending = asyncio.ensure_future(ask(questions)), asyncio.ensure_future(revoked.wait())
    try:
        await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise PartitionsRevoked
        return asking.result()
    finally:
        ending.cancel()
        await end_task(asking, END_S)
