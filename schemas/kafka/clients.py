"""Kafka clients with the settings that every process uses; they start and stop in bounded time."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    BrokerNotAvailableError,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaTimeoutError,
    kafka_errors,
)

from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import Expired
from headrace.schemas.kafka.inflation import bound_inflation
from headrace.schemas.kafka.metadata_backoff import limit_metadata_requests
from headrace.schemas.kafka.refused import refusal_of
from headrace.schemas.kafka.security import with_security
from headrace.schemas.kafka.waits import STOP_S, end_task
from headrace.schemas.topics import TOPICS, Topic

_log = logging.getLogger(__name__)

bound_inflation()
limit_metadata_requests()

# Brokers since 2.8 answer PRODUCER_FENCED (90) where aiokafka only knows INVALID_PRODUCER_EPOCH (47) as fencing.
kafka_errors.setdefault(90, InvalidProducerEpoch)

MAX_REQUEST_BYTES = max(topic.max_bytes for topic in TOPICS)
"""Largest record any topic takes; producers allow as much."""

FETCH_BYTES = 1024 * 1024
"""Most that a fetch returns of one partition, compressed. A larger batch is still returned whole, as the first of a
response. Ten times the size decompressed is common; records are decoded as they are taken (``max_records``)."""


RETRY_BACKOFF_MS = 20
"""A broker that is still completing a transaction answers immediately; the client's default of 100 ms adds delay."""


START_S = 120.0
"""Limit for a transactional producer to get a producer ID: see :func:`start_client`."""


COMPRESSION = "zstd"
"""aiokafka writes lz4 at its slowest level, 40 MB/s of recorded trajectories; zstd writes 540 MB/s, and smaller."""


def new_producer(bootstrap: str, **options: Any) -> AIOKafkaProducer:
    """An idempotent producer for ``bootstrap``, not started. ``options`` are aiokafka's."""
    defaults: dict[str, Any] = {
        "enable_idempotence": True,
        "compression_type": COMPRESSION,
        "linger_ms": 5,
        "max_batch_size": 256 * 1024,
        "max_request_size": MAX_REQUEST_BYTES,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
    }
    return AIOKafkaProducer(bootstrap_servers=bootstrap, **(defaults | with_security(options)))


async def start_client(client: AIOKafkaProducer | AIOKafkaConsumer | AIOKafkaAdminClient) -> None:
    """Start ``client``. The caller stops it, also if this raises.

    Raises ``BrokerNotAvailableError`` if the cluster answers and names no broker, as a single broker does that was
    frozen for longer than its session, until it is registered again. aiokafka only asserts that there is one.
    Raises ``KafkaTimeoutError`` if the coordinator does not end the last transaction of a transactional ID within
    :data:`START_S`: aiokafka would retry forever without a message.
    Raises :class:`~headrace.schemas.kafka.refused.AccessRefused` if the broker does not accept the client's user,
    password or certificate.
    """
    transactional_id = None
    if isinstance(client, AIOKafkaProducer):
        connections = client.client
        transactional_id = client._txn_manager and client._txn_manager.transactional_id
    else:
        connections = client._client
    cluster = connections.cluster
    problem: AssertionError | None = None
    try:
        async with asyncio.timeout(START_S if transactional_id else None) as limit:
            await client.start()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise KafkaTimeoutError(
            f"no producer id for {transactional_id!r} within {START_S:g} s: brokers are unavailable, or its last "
            "transaction does not end. If this persists, `kafka-transactions.sh find-hanging` names the transaction."
        ) from error
    except KafkaConnectionError as error:
        if (refused := await refusal_of(connections)) is not None:
            raise refused from error
        raise
    except AssertionError as error:
        if cluster.brokers():
            raise
        problem = error
    if not cluster.brokers():
        raise BrokerNotAvailableError("the cluster names no broker: try again in a moment") from problem


@asynccontextmanager
async def open_producer(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A :func:`new_producer`, started, and stopped (and flushed) at the end.

    After an exception the flush is bounded: see :func:`stop_producer`.
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
    """Flush and stop ``producer``, or abandon it after ``within_s`` seconds: its own stop waits until the broker is
    available again, which would delay the end of a process.
    """
    for outcome in _unretrieved(producer):
        outcome.add_done_callback(retrieve)
    if not await _done_within(within_s, producer.stop()):
        # stop() waits for the flush before it ends the sender task and the connections: end them here.
        await _done_within(within_s, producer._sender.close())
        await _done_within(within_s, producer.client.close())
        # Its flush keeps waiting in a task, which asyncio would report when the task is collected.
        if flushes := [task for task in asyncio.all_tasks() if _object_of(task) is producer._message_accumulator]:
            for task in flushes:
                task.cancel()
            await asyncio.wait(flushes, timeout=within_s)


def _unretrieved(producer: AIOKafkaProducer) -> Iterator["asyncio.Future[Any]"]:
    """Futures whose exceptions aiokafka does not retrieve if ``producer`` was fenced; asyncio would report each."""
    if producer._txn_manager is not None and producer._txn_manager._transaction_waiter is not None:
        yield producer._txn_manager._transaction_waiter
    accumulator = producer._message_accumulator
    for batch in chain(accumulator._pending_batches, *accumulator._batches.values()):
        yield batch._drain_waiter


def retrieve(outcome: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of ``outcome``, if any, so that asyncio does not report it."""
    if not outcome.cancelled():
        outcome.exception()


def _object_of(task: asyncio.Task[Any]) -> object:
    """The object whose method ``task`` runs; ``None`` if it runs a function or has ended."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return None if frame is None else frame.f_locals.get("self")


async def _done_within(seconds: float, closing: Coroutine[Any, Any, None]) -> bool:
    """Whether ``closing``, which stops a client, ended in time; otherwise it is cancelled."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        await end_task(task, seconds)
    # The client propagates the cancellation of its own tasks, as if this task had been cancelled.
    if task.cancelled() or task.exception() is not None:
        _log.debug("a client of Kafka did not stop by itself")
        return False
    return True


@asynccontextmanager
async def open_consumer(
    bootstrap: str,
    topics: Iterable[Topic] = (),
    *,
    group: str | None = None,
    on_expired: Expired | None = None,
    **options: Any,
) -> AsyncIterator[ReportingConsumer]:
    """A consumer of committed records. Without ``group`` and ``topics`` its user assigns partitions and seeks.

    Unless ``auto_offset_reset`` is ``none``, it skips records that retention deleted before they were read, and
    calls ``on_expired`` with their offsets; default: they are counted and logged.
    """
    defaults: dict[str, Any] = {
        "group_id": group,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        "session_timeout_ms": 10_000,
        "heartbeat_interval_ms": 2_000,
    }
    names = (topic.name for topic in topics)
    settings = defaults | with_security(options)
    consumer = ReportingConsumer(*names, bootstrap_servers=bootstrap, on_expired=on_expired, **settings)
    try:
        await start_client(consumer)
        yield consumer
    finally:
        await _stop_consumer(consumer)


async def _stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group and stop, or only stop if the broker does not answer; it then removes the member by timeout."""
    if not await _done_within(STOP_S, consumer.stop()):
        await _done_within(STOP_S, consumer._client.close())


@asynccontextmanager
async def open_admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client for topics and groups."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **with_security({}))
    try:
        await start_client(admin)
        yield admin
    finally:
        await admin.close()
