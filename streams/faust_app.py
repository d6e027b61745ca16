"""Faust as this house runs it: committed records in, acknowledged records out, loud when an agent fails.

Faust reads uncommitted records unless it is in its own (not trustworthy) exactly-once mode, its producer is not
idempotent, and it restarts or buries an agent that raised. Here the consumer is read_committed, the producer
idempotent, an exception in an agent ends the process, and offsets move only past records whose outputs the broker has.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import aiokafka
import faust
from faust.transport.drivers import aiokafka as driver
from mode.services import WaitResults
from mode.supervisors import CrashingSupervisor
from mode.utils.queues import FlowControlEvent

from headrace.schemas.log import MAX_REQUEST_BYTES, RETRY_BACKOFF_MS
from headrace.schemas.topics import Topic
from headrace.streams.eager import Begun
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.typed_record import R, typed

BATCH_WITHIN_S = 0.05
"""How long it waits for a batch to fill: what a stage adds to the way of a lone trajectory."""
MEMBER_LOST_S = 10.0
"""After this long without a heartbeat a dead worker's partitions go to others. Faust's default is a minute."""


class _CommittedConsumerThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for it outside exactly-once; the client reads the attribute when it starts fetching.
        consumer._isolation_level = "read_committed"
        return consumer


class _CommittedConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> _CommittedConsumerThread:
        return _CommittedConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:
        # Faust makes four tasks for every record that it puts into an agent's queue, to be able to stop in between:
        # half of what it costs. As a rule there is room, and nothing to wait for.
        if len(coros) == 1 or not all(map(asyncio.iscoroutine, coros)):
            return await super().wait_first(*coros, timeout=timeout)
        put, *others = coros
        begun = Begun(put)
        if not begun.done:
            return await super().wait_first(begun, *others, timeout=timeout)
        for other in others:
            other.close()
        return WaitResults([put], [begun.result], False)

    def _new_offset(self, tp: Any) -> int | None:
        # Faust commits up to the first offset that is missing. It knows the markers of transactions as gaps, but counts
        # the record behind each twice, and then gets past one marker a commit: lag grew without end. Each of our topics
        # has one agent, which acknowledges in order, so whatever lies before the last acknowledged record is done.
        acknowledged = self._acked[tp]
        if not acknowledged:
            return None
        last = max(acknowledged)
        acknowledged.clear()
        self._acked_index[tp].clear()
        self._gap.pop(tp, None)
        return int(last) + 1 if cast("_App", self.app).commits_offsets else None


class _IdempotentProducer(driver.Producer):
    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True, "retry_backoff_ms": RETRY_BACKOFF_MS}


class _Transport(driver.Transport):
    Consumer: ClassVar[type[driver.Consumer]] = _CommittedConsumer
    Producer: ClassVar[type[driver.Producer]] = _IdempotentProducer


class _Flow(FlowControlEvent):
    def resume(self) -> None:
        # At the end of a recovery Faust lets the source partitions go and then resumes what flows already, which clears
        # the queues: records that had just come in were lost, and their offsets committed by those that followed.
        if not self.is_active():
            super().resume()


class _App(faust.App):
    commits_offsets = True

    @cached_property
    def flow_control(self) -> FlowControlEvent:
        return _Flow(loop=self.loop)


def new_app(name: str, bootstrap: str, folder: Path, *, batch: int, member: str | None = None) -> faust.App:
    """An app whose consumer group is ``name``, on the Kafka at ``bootstrap`` (``host:port``, several by comma).

    It buffers at most two batches of ``batch`` records. A named ``member`` that died and comes back within
    ``MEMBER_LOST_S`` has its partitions back at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    app = _App(
        name,
        broker=";".join(f"kafka://{address.strip()}" for address in bootstrap.split(",")),
        datadir=folder / name,
        store="memory://",
        processing_guarantee="at_least_once",
        agent_supervisor=CrashingSupervisor,
        autodiscover=False,
        web_enabled=False,
        topic_disable_leader=True,
        broker_session_timeout=MEMBER_LOST_S,
        broker_heartbeat_interval=2.0,
        consumer_group_instance_id=member,
        broker_commit_interval=1.0,
        broker_max_poll_records=batch,
        stream_buffer_maxsize=2 * batch,
        producer_compression_type="lz4",
        producer_linger=0.005,
        producer_max_batch_size=256 * 1024,
        producer_max_request_size=MAX_REQUEST_BYTES,
    )
    app.transport = _Transport(app.conf.broker_consumer, app)
    app.producer_transport = _Transport(app.conf.broker_producer, app)
    return app


def leave_commits_to_transactions(app: faust.App) -> None:
    """``app`` acknowledges, and its own transactions commit: Faust would put an older offset behind theirs."""
    cast("_App", app).commits_offsets = False
    # Faust looks for commits of its own, and would warn for ever.
    app.conf.broker_commit_livelock_soft_timeout = float("inf")


def raw_topic(app: faust.App, topic: Topic) -> faust.TopicT:
    """``topic`` as undecoded bytes: our models decode, not Faust's."""
    return app.topic(topic.name, key_serializer="raw", value_serializer="raw", value_type=bytes, key_type=bytes)


async def batches(stream: Any, size: int) -> AsyncIterator[list[faust.Event]]:
    """Events of ``stream``, at most ``size`` at a time, each to be acknowledged by whoever takes them.

    Faust's own ``take`` acknowledges even after an exception, and so loses the batch.
    """
    async for events in stream.noack_take(size, within=BATCH_WITHIN_S):
        yield list(events)


def current(app: faust.App, events: list[faust.Event]) -> list[faust.Event]:
    """Those that were read since the last rebalance. The others wait unacknowledged in the log for their reader."""
    return [event for event in events if event.message.generation_id == app.consumer_generation_id]


def stored_record(event: faust.Event) -> StoredRecord:
    """The Kafka record behind ``event``."""
    message = event.message
    headers = message.headers or ()
    return StoredRecord(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp=round(message.timestamp * 1000),
        key=message.key,
        value=message.value,
        headers=tuple(headers.items() if isinstance(headers, Mapping) else headers),
    )


def decode_as(record: LogRecord, model: type[R]) -> R:
    """The payload of ``record``; raises :class:`UnreadableRecord` where it is none or of another type."""
    return typed(record, model)[1]


async def send_all(app: faust.App, outgoing: Iterable[Outgoing]) -> None:
    """Send and wait until the broker has everything; raises what the first failed send raised."""
    pending = [
        # Faust takes seconds and truncates to milliseconds: half a millisecond keeps the last digit.
        await app.producer.send(
            topic.name, message.key, message.value, None, (timestamp_ms + 0.5) / 1000, message.headers
        )
        for topic, message, timestamp_ms in outgoing
    ]
    await all_done(pending)


async def all_done(pending: Iterable[Any]) -> None:
    """Wait for every future, then raise the first exception among them, if any."""
    for result in await asyncio.gather(*pending, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class _Worker(faust.Worker):
    def __init__(self, apps: list[faust.App], ready: Callable[[], None], **options: Any) -> None:
        self._starting = {app.conf.id for app in apps}
        self._apps = apps
        self._ready = ready
        super().__init__(*apps, **options)

    def on_init_dependencies(self) -> Iterable[Any]:
        for app in self._apps:
            app.beacon.reattach(self.beacon)
            app.in_worker = True
            app.on_startup_finished = partial(self._app_started, app)
        return list(self._apps)

    async def _app_started(self, app: faust.App) -> None:
        self._starting.discard(app.conf.id)
        if not self._starting:
            self._ready()


def run_apps(apps: list[faust.App], *, ready: Callable[[], None]) -> int:
    """Run ``apps`` until SIGTERM or SIGINT; returns the exit status: 0, or 1 where an agent or Faust itself failed."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = _Worker(apps, ready, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        return int(ended.code or 0)
