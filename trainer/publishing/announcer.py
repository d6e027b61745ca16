"""Announcements: what a step publishes is written to Kafka in one transaction, exactly once, also after a crash.

Checkpoints and positions contain their announcements verbatim. After a restart the log shows whether they were
published: a version's ``Weights`` record is in the same transaction as everything else, and so are the offsets that the
run's consumer group commits, with ``version.revision`` as their metadata. (That group's consumer lag is the trainer's.)
The metadata is read first, because a record is hidden from readers while another run's earlier transaction is open.

After a long outage the broker has aborted the open transaction and fenced its producer, just as another trainer of the
same run would have done. The metadata distinguishes the two cases: it names the trainer instance that started last.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_consumer, stop_producer
from headrace.schemas.kafka.fenced_producer import FencedProducer, Transaction, start_fenced_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, BUDGET, REJECTED, STEPS, TRAINING, WEIGHTS, topic_named, trainer_group
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.trainer.announcements.announcement import Announcement, PublishedPosition
from headrace.trainer.retries.broker import broker_errors
from headrace.trainer.step_effects import Effect, EffectCallback, ignore_effect

_TOPICS = (STEPS, WEIGHTS, BUDGET, REJECTED, ALERTS)
"""Where announcements go."""

_STOP_S = 1.0
"""An abandoned producer has nothing to flush: what it may have published is read from the log."""


class TrainerReplaced(RuntimeError):
    """Another trainer of the same run has started."""


def _accept_any(published: "PublishedPosition") -> None:
    """Accept any published position."""


class Announcer:
    """Publishes the announcements of a call, all or none, and reconnects after an outage of the broker."""

    def __init__(self, bootstrap: str, run: str, *, answer_s: float) -> None:
        """Publish for ``run`` on the broker at ``bootstrap``; each request waits at most ``answer_s`` seconds."""
        self._bootstrap = bootstrap
        self._run = run
        self._answer_s = answer_s
        self._instance = uuid7()
        self._require: Callable[[PublishedPosition], None] = _accept_any
        self._claimed = False
        self._unconfirmed: PublishedPosition | None = None  # begun; unknown whether it was committed
        self._producer: FencedProducer | None = None
        self._in_use = asyncio.Lock()

    async def open(self, require: Callable[[PublishedPosition], None] = _accept_any) -> None:
        """Acquire the run: fence the predecessor and end its open transaction.

        ``require`` is called with the position that the log has, if any. If it raises, the run is not claimed, and a
        trainer that is working on it reconnects and continues. Raises ``LogUnavailable``; then it can be retried.
        """
        async with self._in_use:
            self._require = require
            await self._connect()

    async def decide(self, *, commit: bool) -> None:
        """Commit or abort the last announcement where a broker left its transaction without an end: see
        ``decide_unmarked``. Raises ``LogUnavailable``, after which it can be retried.
        """
        async with self._connected("end what was begun") as producer:
            await self._decide(producer, commit)

    async def close(self) -> None:
        """Close the producer, whether the broker is available or not."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await stop_producer(producer.kafka, _STOP_S)

    async def announce(
        self,
        announcements: Sequence[Announcement],
        *,
        position: PublishedPosition | None = None,
        offsets: Mapping[int, int] | None = None,
        on_effect: EffectCallback = ignore_effect,
    ) -> None:
        """One transaction: ``announcements``, and ``offsets`` (partition of ``training`` → offset) marked ``position``.

        Raises ``LogUnavailable``, after which it can be retried: if ``position`` shows that the transaction was
        committed, it is not written again. Raises :class:`TrainerReplaced` if another trainer of the run has started.
        """
        async with self._connected("announce anything") as producer:
            if position is None or position != self._unconfirmed or not await self._is_published(position):
                self._unconfirmed = position or self._unconfirmed
                await self._publish(producer, announcements, position, offsets or {}, on_effect)
            if position is not None:
                self._unconfirmed = None

    @asynccontextmanager
    async def _connected(self, what: str) -> AsyncIterator[FencedProducer]:
        """The producer, used by one caller at a time and for a bounded time; after a failure the next call starts a
        new one. ``what`` names the work in error messages.
        """
        async with self._in_use:
            if self._producer is None:
                await self._connect()
            assert self._producer is not None
            try:
                with broker_errors(self._bootstrap, what):
                    async with asyncio.timeout(self._answer_s):
                        yield self._producer
            except BaseException:
                await self.close()
                raise

    async def _publish(
        self,
        producer: FencedProducer,
        announcements: Sequence[Announcement],
        position: PublishedPosition | None,
        offsets: Mapping[int, int],
        on_effect: EffectCallback,
    ) -> None:
        async def write(transaction: Transaction) -> None:
            on_effect(Effect.BEGUN)
            for each in announcements:
                await transaction.send(topic_named(each.topic), each.message())
            for sent in transaction.sent:
                await sent
            if position is not None:
                # The first partition's commit always has the run's position and the trainer instance.
                await self._mark(transaction, position, {0: 0, **offsets})
            on_effect(Effect.SENT)

        await self._transact(producer, write)

    async def _transact(self, producer: FencedProducer, write: Callable[[Transaction], Awaitable[None]]) -> None:
        """Write one transaction. A failed one stays open: the next start ends it, as the log's position requires."""
        await producer.transact(
            write, within_s=self._answer_s, what=f"a transaction of run {self._run!r}", aborts=False
        )

    async def _connect(self) -> None:
        with broker_errors(self._bootstrap, "take up a transactional id"):
            async with asyncio.timeout(self._answer_s):
                if self._claimed:
                    await self._require_claim()  # before a successor is fenced
                producer = await start_fenced_producer(
                    self._bootstrap,
                    trainer_group(self._run),
                    timeout_ms=round(self._answer_s * 2000),
                    request_timeout_ms=round(self._answer_s * 1000),
                    stop_s=_STOP_S,
                )
                try:
                    if self._claimed:
                        await self._require_claim()  # no other instance can publish now
                        await self._decide(
                            producer, self._unconfirmed is None or await self._is_published(self._unconfirmed)
                        )
                    else:
                        await self._claim(producer)
                except BaseException:
                    await stop_producer(producer.kafka, _STOP_S)
                    raise
        self._claimed, self._producer = True, producer

    async def _claim(self, producer: FencedProducer) -> None:
        """Record this trainer instance in the log, next to the published position."""
        commit = await self._first_commit()
        position = _read_mark(commit.metadata).position
        if position is None:
            # Nothing was published, or the broker has expired the offsets: everything is published again, same IDs.
            await self._decide(producer, commit=False)
        else:
            self._require(position)
        await self._transact(
            producer, lambda transaction: self._mark(transaction, position, {0: max(commit.offset, 0)})
        )

    async def _require_claim(self) -> None:
        """Raises :class:`TrainerReplaced` if the log names another trainer instance."""
        if _read_mark((await self._first_commit()).metadata).instance not in (None, self._instance):
            raise TrainerReplaced(
                f"another trainer of run {self._run!r} has started, and the broker has fenced this one: stop "
                "one of them, or give it another run"
            )

    async def _decide(self, producer: FencedProducer, commit: bool) -> None:
        places = await producer.places_of(_TOPICS)
        what = f"the last transaction of run {self._run!r}"
        await producer.resolve(places, commit=commit, within_s=self._answer_s, what=what)

    async def _is_published(self, position: PublishedPosition) -> bool:
        """Whether this instance's announcement of ``position`` was committed."""
        known = _read_mark((await self._first_commit()).metadata).position
        return known is not None and known >= position

    async def _first_commit(self) -> OffsetAndMetadata:
        place = TopicPartition(TRAINING.name, 0)
        return (await committed_offsets(self._bootstrap, trainer_group(self._run), [place]))[place]

    async def _mark(
        self, transaction: Transaction, position: PublishedPosition | None, offsets: Mapping[int, int]
    ) -> None:
        mark = f"{_Mark(position, self._instance)}"
        places = {
            TopicPartition(TRAINING.name, partition): OffsetAndMetadata(offset, mark)
            for partition, offset in offsets.items()
        }
        await transaction.commit_offsets(places, trainer_group(self._run))


def _trust_all(weights: Weights) -> bool:
    return True


async def newest_published(
    bootstrap: str, run: str, *, is_trusted: Callable[[Weights], bool] = _trust_all, takes_over: bool = True
) -> PublishedPosition | None:
    """The newest position that ``run`` has published; ``None`` if there is none.

    It is read from the group's offsets or, if the broker has expired them (after a week without members), from
    ``weights``: from the records that ``is_trusted`` accepts, because any client can forge one. The revision
    is 0 then, and what is published again has the same IDs. Only in that case are other runs' open transactions waited
    for, and only by a trainer that ``takes_over``: before that, the run's own may be open. Raises ``LogUnavailable``.
    """
    with broker_errors(bootstrap, "read what was announced"):
        async with open_consumer(bootstrap) as consumer:
            partitions = await partitions_of(consumer, TRAINING)
        commits = await committed_offsets(bootstrap, trainer_group(run), partitions)
        marked = max(
            (position for each in commits.values() if (position := _read_mark(each.metadata).position)), default=None
        )
        version = await _newest_version(bootstrap, run, is_trusted, decided=marked is None and takes_over)
    if version is None or (marked is not None and marked.version >= version):
        return marked
    return PublishedPosition(version)


async def _newest_version(
    bootstrap: str, run: str, is_trusted: Callable[[Weights], bool], *, decided: bool
) -> int | None:
    newest: int | None = None
    async for record in read_to_end(bootstrap, WEIGHTS, decided=decided):
        try:
            _, payload = decode(record.headers, record.value)
        except UnreadableRecord:
            continue  # not an announcement: a trainer does not write such a record
        if isinstance(payload, Weights) and payload.run == run and is_trusted(payload):
            newest = payload.version if newest is None else max(newest, payload.version)
    return newest


class _Mark(NamedTuple):
    """The metadata of a committed offset: ``412.2 01936f…``."""

    position: PublishedPosition | None
    """The published position; ``None`` before the first version."""
    instance: str | None
    """The trainer instance that committed it."""

    def __str__(self) -> str:
        position = f"{self.position.version}.{self.position.revision}" if self.position else ""
        return f"{position} {self.instance}"


def _read_mark(metadata: str | None) -> _Mark:
    found = re.fullmatch(r"(?:(\d+)\.(\d+))?(?: (\S+))?", metadata or "")
    if found is None:
        return _Mark(None, None)
    return _Mark(PublishedPosition(int(found[1]), int(found[2])) if found[1] else None, found[3])
