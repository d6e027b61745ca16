"""A transactional producer whose id is used by one process at a time: starting it fences the predecessor.

    async with open_fenced_producer(bootstrap, "headrace-score-3", timeout_ms=60_000) as producer:
        await producer.resolve(places, commit=False)            ends the predecessor's last transaction everywhere

        async def write(transaction: Transaction) -> None:
            await transaction.send_all(records)
            await transaction.commit_offsets({place: 61}, group)

        await producer.transact(write, within_s=90, what="a transaction of score")      all or nothing

The broker aborts a transaction that the predecessor left open, and refuses the writes of a suspended predecessor that
resumes. So the predecessor can no longer change the committed offsets that the owner reads after its start.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import IllegalOperation, KafkaError, KafkaTimeoutError, ProducerFenced, UnknownError
from aiokafka.structs import OffsetAndMetadata, RecordMetadata

from headrace.schemas.kafka.clients import new_producer, retrieve, start_client, stop_producer
from headrace.schemas.kafka.sending import OutgoingRecord, batched, send
from headrace.schemas.kafka.transactions import begin_over, decide_unmarked
from headrace.schemas.kafka.waits import STOP_S, within
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

T = TypeVar("T")


class Transaction:
    """The writes of one transaction."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.sent: list[asyncio.Future[RecordMetadata]] = []
        """Positions of the sent records, in order; for a batch, that of its first record."""
        self.committed: list[tuple[Mapping[TopicPartition, OffsetAndMetadata], str]] = []
        """Offsets to commit with it, and their consumer group."""
        self._producer = producer

    async def send(
        self, topic: Topic, message: Message, partition: int | None = None, *, timestamp_ms: int | None = None
    ) -> "asyncio.Future[RecordMetadata]":
        """Send ``message``, and return a future of its position; ``timestamp_ms`` as for
        :func:`headrace.schemas.kafka.sending.send`.
        """
        return self._sent(await send(self._producer, topic, message, partition, timestamp_ms=timestamp_ms))

    async def send_all(self, records: Sequence[OutgoingRecord]) -> list[int]:
        """Send ``records`` in batches, wait until the broker has stored them, and return their offsets."""
        batches = await batched(self._producer, records)
        sent = [
            self._sent(await self._producer.send_batch(builder, place.topic, partition=place.partition))
            for place, builder, _ in batches
        ]
        stored = await asyncio.gather(*sent)
        offsets = [0] * len(records)
        for batch, metadata in zip(batches, stored, strict=True):
            for offset, index in enumerate(batch.indices, metadata.offset):
                offsets[index] = offset
        return offsets

    async def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str) -> None:
        """Commit ``offsets`` of the consumer group ``group`` as part of the transaction."""
        self.committed.append((offsets, group))
        await self._producer.send_offsets_to_transaction(offsets, group)

    def _sent(self, place: "asyncio.Future[RecordMetadata]") -> "asyncio.Future[RecordMetadata]":
        # Retrieved so that asyncio does not log it: if a send fails, the commit fails, too.
        place.add_done_callback(retrieve)
        self.sent.append(place)
        return place


class _Ended(NamedTuple):
    """What a transaction wrote that has ended."""

    places: frozenset[TopicPartition] = frozenset()
    offsets: tuple[tuple[Mapping[TopicPartition, OffsetAndMetadata], str], ...] = ()


class FencedProducer:
    """Writes transactions under one transactional id; created by :func:`open_fenced_producer`.

    A broker that stops after it has accepted the end of a transaction may omit its markers when it is back (see
    :func:`decide_unmarked`). So if the connection to the coordinator of the transactions is another one than
    before, an empty transaction over the partitions of the last two repeats their markers.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        """``producer``: a started transactional producer."""
        self._unusable: BaseException | None = None
        self._connection = _connection_of(producer)
        self._last = _Ended()
        self.kafka = producer
        """The Kafka client."""

    async def transact(
        self, work: Callable[[Transaction], Awaitable[T]], *, within_s: float, what: str, aborts: bool = True
    ) -> T:
        """Run ``work``, which writes the transaction, and return its result. The transaction is committed when ``work``
        returns and, with ``aborts``, aborted when it raises.

        Without ``aborts`` a failed transaction stays open until the next start under the id, or its timeout, ends it.
        Raises ``ProducerFenced`` if another producer has started under the id, a ``KafkaTimeoutError`` that names
        ``what`` after ``within_s`` seconds, and aiokafka's errors. After any of these errors, only a new start
        determines whether the transaction was committed.
        """
        try:
            return await within(within_s, self._transact(work, aborts), what)
        except ProducerFenced as error:
            self._unusable = error
            raise

    async def resolve(self, places: Iterable[TopicPartition], *, commit: bool, within_s: float, what: str) -> None:
        """Commit or abort, in ``places``, the last transaction under the id if the broker has not written its end
        marker, as may happen when the broker is stopped (see :func:`decide_unmarked`). Raises the same errors as
        :meth:`transact`.
        """
        await within(within_s, self._resolve(list(places), commit), what)

    async def places_of(self, topics: Collection[Topic]) -> list[TopicPartition]:
        """Return all partitions of ``topics``."""
        numbers = {topic.name: await self.kafka.partitions_for(topic.name) for topic in topics}
        return [TopicPartition(name, number) for name, found in numbers.items() for number in sorted(found)]

    async def _transact(self, work: Callable[[Transaction], Awaitable[T]], aborts: bool) -> T:
        if self._unusable is not None:
            raise self._unusable
        await self.kafka.begin_transaction()
        transaction = Transaction(self.kafka)
        # Until it has ended in a known way. aiokafka only asserts that a transaction can be begun.
        self._unusable = KafkaTimeoutError("the end of an earlier transaction is unknown: start the producer again")
        try:
            result = await work(transaction)
            stored = await asyncio.gather(*transaction.sent)
        except BaseException as error:
            cause = cause_of(self.kafka, error)
            if aborts and not self.kafka._txn_manager.is_fatal_error():
                await _ended(self.kafka.abort_transaction())
                # Otherwise the marker of the abort may be missing, and the next transaction's would commit its records.
                if not self._has_reconnected():
                    self._unusable = None
            if cause is not error:
                raise cause from error
            raise
        ended = _Ended(frozenset(each.topic_partition for each in stored), tuple(transaction.committed))
        await _ended(self.kafka.commit_transaction())
        while self._has_reconnected():
            await self._repeat_markers(ended)
        self._unusable, self._last = None, ended
        return result

    def _has_reconnected(self) -> bool:
        """Whether the connection to the coordinator is closed, or another one than at the last call."""
        before, self._connection = self._connection, _connection_of(self.kafka)
        return self._connection is None or self._connection is not before

    async def _resolve(self, places: Collection[TopicPartition], commit: bool) -> None:
        await decide_unmarked(self.kafka, places, commit=commit)
        while self._has_reconnected():
            await decide_unmarked(self.kafka, places, commit=commit)

    async def _repeat_markers(self, ended: _Ended) -> None:
        """Commit once more, without records, where the last transaction and ``ended`` wrote."""
        await begin_over(self.kafka, ended.places | self._last.places)
        for offsets, group in ended.offsets or self._last.offsets:
            await self.kafka.send_offsets_to_transaction(offsets, group)
        await _ended(self.kafka.commit_transaction())


def _connection_of(producer: AIOKafkaProducer) -> object:
    """The connection of ``producer`` to the broker that coordinates its transactions; ``None`` if it is closed.

    aiokafka does not tell that it has opened another one.
    """
    node = producer._sender._coordinators.get(CoordinationType.TRANSACTION)
    connection = producer.client._conns.get((node, ConnectionGroup.COORDINATION))
    return connection if connection is not None and connection.connected() else None


async def _ended(end: Awaitable[None]) -> None:
    """Await the end of a transaction. Raises ``ProducerFenced`` if the broker is just fencing the producer.

    Kafka's coordinator (4.3) then fails with an internal error, ``IllegalStateException: … while it already a pending
    state PREPARE_EPOCH_FENCE``. After any other internal error of it, a new start determines how the transaction ended.
    """
    try:
        await end
    except KafkaError as error:
        if isinstance(error, UnknownError) or isinstance(error.__cause__, UnknownError):
            raise ProducerFenced("the broker failed to end a transaction, as it does while it fences") from error
        raise


def cause_of(producer: AIOKafkaProducer, error: BaseException) -> BaseException:
    """Return the error that ended the transaction of ``producer`` if ``error`` only states that there is none: between
    two sends, the producer may be fenced or denied access to a topic. Otherwise return ``error``.
    """
    outcome = producer._txn_manager._transaction_waiter
    if not isinstance(error, IllegalOperation) or outcome is None or not outcome.done() or outcome.cancelled():
        return error
    cause: BaseException | None = outcome.exception()
    return cause or error


async def start_fenced_producer(
    bootstrap: str, transactional_id: str, *, timeout_ms: int, stop_s: float = STOP_S, **options: Any
) -> FencedProducer:
    """Start a producer and fence any other producer with this ``transactional_id``. The caller stops it with
    ``stop_producer(fenced.kafka)``; if this function raises, it has been stopped within ``stop_s`` seconds.

    ``timeout_ms``: after this time the broker aborts the transaction of a process that died without a successor; until
    then, readers wait. ``options`` are aiokafka's. Raises aiokafka's errors if the broker does not answer.
    """
    # Records of a transaction are sent in batches, and its end waits for them: lingering would only delay it.
    settings = {"linger_ms": 0, "transaction_timeout_ms": timeout_ms, **options}
    producer = new_producer(bootstrap, transactional_id=transactional_id, **settings)
    try:
        await start_client(producer)
    except BaseException:
        await stop_producer(producer, stop_s)
        raise
    return FencedProducer(producer)


@asynccontextmanager
async def open_fenced_producer(
    bootstrap: str, transactional_id: str, *, timeout_ms: int, stop_s: float = STOP_S, **options: Any
) -> AsyncIterator[FencedProducer]:
    """Like :func:`start_fenced_producer`, and stop the producer at the end, within ``stop_s`` seconds."""
    fenced = await start_fenced_producer(bootstrap, transactional_id, timeout_ms=timeout_ms, stop_s=stop_s, **options)
    try:
        yield fenced
    finally:
        # Between two transactions no record is pending, so an unavailable broker need not be waited for.
        await stop_producer(fenced.kafka, stop_s)
