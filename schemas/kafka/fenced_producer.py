"""A transactional producer whose id only one process uses at a time: starting it fences the predecessor.

    async with open_fenced_producer(bootstrap, "headrace-score-3", timeout_ms=60_000) as producer:
        await producer.resolve(places, commit=False)            the predecessor's last transaction has an end everywhere

        async def write(transaction: Transaction) -> None:
            await transaction.send(REWARDS, message)
            await transaction.commit_offsets({place: 61}, group)

        await producer.transact(write, within_s=90, what="a transaction of score")      everything or nothing

The broker aborts a transaction that the predecessor left open, and refuses whatever a suspended predecessor writes when
it wakes up. So the owner's committed offsets, read after the start, cannot become older than somebody's later write.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import OffsetAndMetadata, RecordMetadata

from headrace.schemas.kafka.clients import new_producer, retrieve, start_client, stop_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.transactions import decide_unmarked
from headrace.schemas.kafka.waits import STOP_S, within
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

T = TypeVar("T")


class Transaction:
    """What is written in one transaction. Each send returns the future of the record's place."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.sent: list[asyncio.Future[RecordMetadata]] = []
        """Places of the records sent, in order; of a batch, that of its first."""
        self._producer = producer

    async def send(
        self, topic: Topic, message: Message, partition: int | None = None, *, timestamp_ms: int | None = None
    ) -> "asyncio.Future[RecordMetadata]":
        """Send ``message``; ``timestamp_ms`` as for :func:`headrace.schemas.kafka.sending.send`."""
        return self._sent(await send(self._producer, topic, message, partition, timestamp_ms=timestamp_ms))

    async def send_state(
        self, place: TopicPartition, key: bytes, value: bytes | None
    ) -> "asyncio.Future[RecordMetadata]":
        """Send an entry of a compacted topic to ``place``; ``None`` deletes it."""
        return self._sent(await self._producer.send(place.topic, value, key, place.partition))

    async def send_batch(self, batch: BatchBuilder, place: TopicPartition) -> "asyncio.Future[RecordMetadata]":
        """Send a batch of :meth:`create_batch` to ``place``."""
        return self._sent(await self._producer.send_batch(batch, place.topic, partition=place.partition))

    def create_batch(self) -> BatchBuilder:
        """An empty batch."""
        return self._producer.create_batch()

    async def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str) -> None:
        """Commit ``offsets`` of the consumer group ``group`` with the transaction."""
        await self._producer.send_offsets_to_transaction(offsets, group)

    def _sent(self, place: "asyncio.Future[RecordMetadata]") -> "asyncio.Future[RecordMetadata]":
        # asyncio reports results that nobody retrieves; here the commit fails where a send does.
        place.add_done_callback(retrieve)
        self.sent.append(place)
        return place


class FencedProducer:
    """Writes transactions under one transactional id; made by :func:`open_fenced_producer`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        """``producer``: transactional and started."""
        self.kafka = producer
        """Kafka's client."""

    async def transact(
        self, work: Callable[[Transaction], Awaitable[T]], *, within_s: float, what: str, aborts: bool = True
    ) -> T:
        """The result of ``work``, which writes; committed when it returns and, with ``aborts``, aborted when it raises.

        Without ``aborts`` a transaction that fails stays open until the id's next start, or its timeout, ends it.
        Raises ``ProducerFenced`` where another producer has started under the id, ``KafkaTimeoutError`` naming
        ``what`` after ``within_s`` seconds, and aiokafka's errors. After any of them only a new start finds out whether
        the transaction was committed.
        """
        return await within(within_s, self._transact(work, aborts), what)

    async def resolve(self, places: Iterable[TopicPartition], *, commit: bool, within_s: float, what: str) -> None:
        """Commit or abort in ``places`` what the last transaction under the id left without an end: a broker that is
        stopped at the wrong moment leaves it out (see :func:`decide_unmarked`). Raises as :meth:`transact`.
        """
        await within(within_s, decide_unmarked(self.kafka, places, commit=commit), what)

    async def places_of(self, topics: Collection[Topic]) -> list[TopicPartition]:
        """Every partition of ``topics``."""
        numbers = {topic.name: await self.kafka.partitions_for(topic.name) for topic in topics}
        return [TopicPartition(name, number) for name, found in numbers.items() for number in sorted(found)]

    async def _transact(self, work: Callable[[Transaction], Awaitable[T]], aborts: bool) -> T:
        await self.kafka.begin_transaction()
        transaction = Transaction(self.kafka)
        try:
            result = await work(transaction)
        except BaseException as error:
            cause = cause_of(self.kafka, error)
            if aborts and not self.kafka._txn_manager.is_fatal_error():
                await self.kafka.abort_transaction()
            if cause is not error:
                raise cause from error
            raise
        await self.kafka.commit_transaction()
        return result


def cause_of(producer: AIOKafkaProducer, error: BaseException) -> BaseException:
    """What ended the transaction of ``producer`` where ``error`` only says that there is none: between two sends it may
    be fenced, or be refused a topic.
    """
    outcome = producer._txn_manager._transaction_waiter
    if not isinstance(error, IllegalOperation) or outcome is None or not outcome.done() or outcome.cancelled():
        return error
    cause: BaseException | None = outcome.exception()
    return cause or error


async def start_fenced_producer(
    bootstrap: str, transactional_id: str, *, timeout_ms: int, stop_s: float = STOP_S, **options: Any
) -> FencedProducer:
    """Fence whoever uses ``transactional_id``. To be stopped with ``stop_producer(fenced.kafka)``; where this raises,
    it was stopped within ``stop_s`` seconds.

    ``timeout_ms``: after so long the broker aborts a transaction of a process that died and has no successor; readers
    wait for that. ``options`` are aiokafka's. Raises aiokafka's errors where the broker does not answer.
    """
    producer = new_producer(bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, **options)
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
    """As :func:`start_fenced_producer`, stopped at the end, for which ``stop_s`` seconds are waited at most."""
    fenced = await start_fenced_producer(bootstrap, transactional_id, timeout_ms=timeout_ms, stop_s=stop_s, **options)
    try:
        yield fenced
    finally:
        # Nothing waits in it between two transactions: while the broker is away there is nothing to wait for.
        await stop_producer(fenced.kafka, stop_s)
