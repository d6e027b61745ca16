"""The log, as every process opens it: one way to make topics, producers and consumers, one way to read to the end."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    BrokerNotAvailableError,
    GroupLoadInProgressError,
    InvalidProducerEpoch,
    KafkaError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    for_code,
    kafka_errors,
)
from aiokafka.structs import OffsetAndMetadata
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from headrace.schemas.inflation import bound_inflation
from headrace.schemas.metadata_pace import steady_metadata
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import TOPICS, Topic
from headrace.schemas.waits import STOP_S, end_task
from headrace.schemas.wire import Message

_log = logging.getLogger(__name__)

bound_inflation()
steady_metadata()

KafkaRecord: TypeAlias = "ConsumerRecord[bytes | None, bytes | None]"
"""A record as the client gives it: undecoded key and value, headers, topic, partition, offset, timestamp (ms)."""

MAX_REQUEST_BYTES = max(topic.max_bytes for topic in TOPICS)
"""Largest record any topic takes; producers and fetches allow as much."""

# Brokers since 2.8 answer PRODUCER_FENCED (90) where aiokafka only knows INVALID_PRODUCER_EPOCH (47) as fencing.
kafka_errors.setdefault(90, InvalidProducerEpoch)

RETRY_BACKOFF_MS = 20
"""A broker that is still completing a transaction answers at once; the client's default of 100 ms only adds delay."""


AHEAD_MS = 50 * 60 * 1000
"""How far ahead of now a timestamp may be; Kafka's default is an hour."""

STALLED_S = 60.0
"""A reader that knows of further records, and gets none for so many seconds, takes the broker for away."""

START_S = 120.0
"""A transactional producer that has no producer id after so many seconds is given up: see :func:`start_client`."""

_LOOK_S = 0.1
_REMIND_S = 30.0

COMPRESSION = "zstd"
"""aiokafka writes lz4 at the level that takes longest: 40 MB/s of recorded trajectories, and zstd 540, and smaller."""


def new_producer(bootstrap: str, **options: Any) -> AIOKafkaProducer:
    """An idempotent producer on ``bootstrap`` that was not started. ``options`` are aiokafka's."""
    defaults: dict[str, Any] = {
        "enable_idempotence": True,
        "compression_type": COMPRESSION,
        "linger_ms": 5,
        "max_batch_size": 256 * 1024,
        "max_request_size": MAX_REQUEST_BYTES,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
    }
    return AIOKafkaProducer(bootstrap_servers=bootstrap, **(defaults | options))


async def start_client(client: AIOKafkaProducer | AIOKafkaConsumer | AIOKafkaAdminClient) -> None:
    """Start ``client``, which its user stops, whatever this raises.

    Raises ``BrokerNotAvailableError`` where the cluster answers and names no broker, as one of a single broker does
    that was frozen for longer than its session, until it is let in again. aiokafka only asserts that there is one.
    Raises ``KafkaTimeoutError`` where the coordinator does not end the last transaction of a transactional id within
    :data:`START_S`: aiokafka would ask on for ever, and say nothing.
    """
    transactional_id = None
    if isinstance(client, AIOKafkaProducer):
        cluster = client.client.cluster
        transactional_id = client._txn_manager and client._txn_manager.transactional_id
    else:
        cluster = client._client.cluster
    problem: AssertionError | None = None
    try:
        async with asyncio.timeout(START_S if transactional_id else None) as limit:
            await client.start()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise KafkaTimeoutError(
            f"no producer id for {transactional_id!r} within {START_S:g} s: brokers are away, or its last transaction "
            "does not end. If this goes on, `kafka-transactions.sh find-hanging` names the transaction."
        ) from error
    except AssertionError as error:
        if cluster.brokers():
            raise
        problem = error
    if not cluster.brokers():
        raise BrokerNotAvailableError("the cluster names no broker: try again in a moment") from problem


@asynccontextmanager
async def open_producer(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A :func:`new_producer`, started, and stopped (and flushed) at the end.

    After an exception its flush is not waited for: see :func:`stop_producer`.
    """
    producer = new_producer(bootstrap, **options)
    try:
        await start_client(producer)
        yield producer
    except BaseException:
        await stop_producer(producer)
        raise
    await producer.stop()


async def stop_producer(producer: AIOKafkaProducer, within_s: float = STOP_S) -> None:
    """Flush and stop ``producer``, or give it up after ``within_s`` seconds: its own stop waits until the broker is
    back, and so would a process that is asked to end.
    """
    for outcome in _unasked(producer):
        outcome.add_done_callback(_asked_for)
    if not await _done_within(within_s, producer.stop()):
        # stop() waits for the flush before it ends the sender task and the connections: end them here.
        await _done_within(within_s, producer._sender.close())
        await _done_within(within_s, producer.client.close())
        # Its flush waits on, in a task of its own, and asyncio would complain of that once it is collected.
        if flushes := [task for task in asyncio.all_tasks() if _object_of(task) is producer._message_accumulator]:
            for task in flushes:
                task.cancel()
            await asyncio.wait(flushes, timeout=within_s)


def _unasked(producer: AIOKafkaProducer) -> Iterator["asyncio.Future[Any]"]:
    """Futures whose exceptions nobody asks for where ``producer`` was fenced; asyncio would complain of each."""
    if producer._txn_manager is not None and producer._txn_manager._transaction_waiter is not None:
        yield producer._txn_manager._transaction_waiter
    accumulator = producer._message_accumulator
    for batch in chain(accumulator._pending_batches, *accumulator._batches.values()):
        yield batch._drain_waiter


def _asked_for(outcome: "asyncio.Future[Any]") -> None:
    if not outcome.cancelled():
        outcome.exception()


def _object_of(task: asyncio.Task[Any]) -> object:
    """Whose method ``task`` runs; ``None`` where it runs a function, or is over."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return None if frame is None else frame.f_locals.get("self")


async def _done_within(seconds: float, closing: Coroutine[Any, Any, None]) -> bool:
    """Whether ``closing`` a client came to an end in time and by itself; otherwise it is ended."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        await end_task(task, seconds)
    # The client lets the cancellation of its own tasks out, as if somebody had cancelled us.
    if task.cancelled() or task.exception() is not None:
        _log.debug("a client of Kafka did not stop by itself")
        return False
    return True


async def decide_unmarked(producer: AIOKafkaProducer, partitions: Iterable[TopicPartition], *, commit: bool) -> None:
    """Commit or abort an empty transaction of the transactional, idle ``producer`` over ``partitions``.

    Afterwards no record of its transactional id is undecided there. Starting a producer ends its predecessor's
    transaction, but a broker that was stopped meanwhile may leave a partition's marker out (Kafka 4.3.0), and would
    hold back readers until the producer's next transaction over that partition. Markers are written a moment later.
    """
    await producer.begin_transaction()
    for partition in partitions:
        producer._txn_manager.maybe_add_partition_to_txn(partition)  # what its send does before the record itself
    await (producer.commit_transaction() if commit else producer.abort_transaction())


@asynccontextmanager
async def open_consumer(
    bootstrap: str, topics: Iterable[Topic] = (), *, group: str | None = None, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of committed records. Without ``group`` and ``topics`` its user assigns partitions and seeks."""
    defaults: dict[str, Any] = {
        "group_id": group,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_partition_fetch_bytes": MAX_REQUEST_BYTES,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        "session_timeout_ms": 10_000,
        "heartbeat_interval_ms": 2_000,
    }
    consumer = AIOKafkaConsumer(*(topic.name for topic in topics), bootstrap_servers=bootstrap, **(defaults | options))
    try:
        await start_client(consumer)
        yield consumer
    finally:
        await _stop_consumer(consumer)


async def _stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group and stop, or only stop where the broker does not answer: it notices who is silent."""
    if not await _done_within(STOP_S, consumer.stop()):
        await _done_within(STOP_S, consumer._client.close())


@asynccontextmanager
async def open_admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client for topics and groups."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await start_client(admin)
        yield admin
    finally:
        await admin.close()


async def send(
    producer: AIOKafkaProducer,
    topic: Topic,
    message: Message,
    partition: int | None = None,
    *,
    timestamp_ms: int | None = None,
) -> Any:
    """Hand ``message`` to the producer; the awaitable it returns resolves once the broker has it.

    ``timestamp_ms`` (Unix) is log time, written as :func:`acceptable_ms`; ``None``: the time of sending.
    """
    return await producer.send(
        topic.name,
        key=message.key,
        value=message.value,
        headers=message.headers,
        partition=partition,
        timestamp_ms=None if timestamp_ms is None else acceptable_ms(timestamp_ms),
    )


def acceptable_ms(timestamp_ms: int) -> int:
    """``timestamp_ms`` (Unix), from 0 and at most :data:`AHEAD_MS` ahead of the wall's clock: brokers refuse a record
    that is further ahead (``message.timestamp.after.max.ms``), and a commit with one in it would fail for ever.
    """
    return min(max(0, timestamp_ms), time.time_ns() // 1_000_000 + AHEAD_MS)


async def partitions_of(consumer: AIOKafkaConsumer, topic: Topic) -> list[TopicPartition]:
    """The topic's partitions, ascending; raises ``LookupError`` where the broker has no such topic."""
    for _ in range(50):
        numbers = consumer.partitions_for_topic(topic.name)
        if numbers:
            return [TopicPartition(topic.name, number) for number in sorted(numbers)]
        await consumer._client.force_metadata_update()
        await consumer.topics()
        await asyncio.sleep(0.1)
    raise TopicsError(f"the broker has no topic {topic.name!r}: `headrace up` or `headrace topics --create` makes it")


# The coordinator may be moving or loading, as after a restart of the broker.
@retry(
    retry=retry_if_exception_type(KafkaError), wait=wait_exponential(0.1, 2), stop=stop_after_delay(60), reraise=True
)
async def committed_offsets(
    bootstrap: str, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What ``group`` committed of each of ``partitions``, with metadata; offset −1 where it committed nothing.

    Waits up to a minute for a coordinator that is loading, then raises aiokafka's error.
    """
    async with open_admin(bootstrap) as admin:
        commits: dict[TopicPartition, OffsetAndMetadata] = await admin.list_consumer_group_offsets(
            group, partitions=list(partitions)
        )
    if missing := set(partitions) - commits.keys():
        # So answers a coordinator that is still loading: the client overlooks its error. "Nothing yet" is an entry, −1.
        raise GroupLoadInProgressError(f"the coordinator of {group!r} said nothing of {sorted(missing)}")
    return commits


async def until_decided(bootstrap: str, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Wait until every transaction that is open in ``places`` now has ended; returns their ends as of now.

    A committed read stops before the first open transaction, whoever's it is: what was committed behind it is hidden
    for as long. Who reads the log to learn what it wrote itself must not stop there. A transaction that nobody ends is
    aborted at its producer's timeout.
    """
    async with (
        open_consumer(bootstrap) as committed,
        open_consumer(bootstrap, isolation_level="read_uncommitted") as written,
    ):
        ends: dict[TopicPartition, int] = await written.end_offsets(places)
        remind_at = time.monotonic()
        while True:
            stable = await committed.end_offsets(places)
            hidden = {place: end for place, end in ends.items() if stable[place] < end}
            if not hidden:
                return ends
            if time.monotonic() >= remind_at:
                for place, end in hidden.items():
                    _log.warning(
                        "%s[%d]: waiting for another producer's transaction, open at %d of %d. It is committed, or "
                        "aborted at its timeout; if this goes on, `kafka-transactions.sh find-hanging` names it.",
                        place.topic, place.partition, stable[place], end,
                    )  # fmt: skip
                remind_at = time.monotonic() + _REMIND_S
            await asyncio.sleep(_LOOK_S)


async def read_to_end(
    bootstrap: str, topic: Topic, *, start: Mapping[int, int] | None = None, decided: bool = False
) -> AsyncIterator[KafkaRecord]:
    """Every committed record of ``topic`` from ``start`` (partition → offset; default all) to the end as of now.

    That end is before the first open transaction; or, where all of it is to be ``decided``, behind: see
    :func:`until_decided`.
    """
    async with open_consumer(bootstrap) as consumer:
        places = await partitions_of(consumer, topic)
        if decided:
            await until_decided(bootstrap, places)
        async for record in scan(consumer, places, start=start):
            yield record


async def scan(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], *, start: Mapping[int, int] | None = None
) -> AsyncGenerator[KafkaRecord]:
    """Every committed record of ``places``, partitions of one topic, from ``start`` to the end as of now.

    ``start``: partition → offset; default the beginning. ``consumer`` has no subscription, and is left assigned.
    Raises ``KafkaTimeoutError`` where the broker gives no record for :data:`STALLED_S` before that end.
    """
    consumer.assign(places)
    ends = await consumer.end_offsets(places)
    begins = await consumer.beginning_offsets(places)
    for place in places:
        wanted = (start or {}).get(place.partition, begins[place])
        consumer.seek(place, max(wanted, begins[place]))
    stall = Stall()
    left = [place for place in places if await consumer.position(place) < ends[place]]
    while left:
        batches = await consumer.getmany(*left, timeout_ms=500)
        for place, records in batches.items():
            for record in records:
                if record.offset < ends[place]:
                    yield record
        # The position passes transaction markers, which are offsets without a record.
        positions = {place: await consumer.position(place) for place in left}
        stall.moved_to(positions)
        left = [place for place in left if positions[place] < ends[place]]


class Stall:
    """Notices a reader that should get on and does not: the client itself waits for ever, and says nothing."""

    def __init__(self, after_s: float = STALLED_S) -> None:
        """``after_s``: how long a reader may stand still."""
        self._after_s = after_s
        self._at: object = None
        self._since = 0.0

    def moved_to(self, at: object) -> None:
        """The reader stands ``at``; raises ``KafkaTimeoutError`` where it has been there for too long."""
        now = asyncio.get_running_loop().time()
        if at != self._at:
            self._at, self._since = at, now
        elif now - self._since > self._after_s:
            raise KafkaTimeoutError(f"the broker gave no record for {self._after_s:g} s where there are some ({at})")


BROKERS_DEFAULT = -1
"""Replication factor as the cluster is set up for."""


async def create_topics(
    bootstrap: str, topics: Iterable[Topic] = TOPICS, *, replication: int = BROKERS_DEFAULT
) -> list[str]:
    """Create the topics that are missing; returns their names. Existing ones are left as they are."""
    async with open_admin(bootstrap) as admin:
        # The client takes the cluster's default factor only together with an (empty) assignment of replicas.
        assignment: dict[int, list[int]] | None = {} if replication == BROKERS_DEFAULT else None
        wanted = [
            NewTopic(topic.name, topic.partitions, replication, assignment, topic_configs=topic.configs)
            for topic in topics
        ]
        response = await admin.create_topics(wanted)
        created = []
        for name, code, *rest in response.topic_errors:
            error = for_code(code)
            if code == 0:
                created.append(name)
            elif error is not TopicAlreadyExistsError:
                raise error(f"topic {name}: {rest[0] if rest else ''}")
        return created
