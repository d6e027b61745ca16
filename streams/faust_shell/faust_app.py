"""Faust as this house runs it: committed records in, offsets left to the transactions of those who write.

Faust reads uncommitted records unless it is in its own (not trustworthy) exactly-once mode, and it restarts or buries
an agent that raised. Here the consumer is read_committed, an exception in an agent ends the process, and Faust commits
nothing: what was made of a record is written in one transaction with the offset behind it (``owned_partition.py``).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import aiokafka
import faust
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocol
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.services import Service, WaitResults
from mode.supervisors import CrashingSupervisor
from mode.utils.queues import FlowControlEvent

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import Topic
from headrace.streams.faust_shell.eager import Begun
from headrace.streams.faust_shell.passed_over import PassedOver
from headrace.streams.raw import StoredRecord

BATCH_WITHIN_S = 0.05
"""How long it waits for a batch to fill: what a stage adds to the way of a lone trajectory."""
FETCH_WAIT_MS = 100
"""How long a broker holds a request for records where there are none. One request a broker is under way at a time:
while it is held for an idle partition, the busy ones run dry. Faust has 1.5 s."""
PAUSE_S = 0.02
"""How often it is looked, while buffers are full, whether they still are."""
MEMBER_LOST_S = 10.0
"""After this long without a heartbeat a dead worker's partitions go to others. Faust's default is a minute."""


class _CommittedConsumerThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has settings for none of these; the client reads the attributes when it starts.
        consumer._isolation_level = "read_committed"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        # Partition p of every topic goes to the same member: of `trajectories` and of `feedback` too.
        consumer._partition_assignment_strategy = (RangePartitionAssignor,)
        return consumer

    async def _fetch_records(self, *args: Any, **options: Any) -> Mapping[TP, list[Any]]:
        fetched: Mapping[TP, list[Any]] = await super()._fetch_records(*args, **options)
        passed_over = cast("_App", self.app).passed_over
        for place, records in fetched.items():
            passed_over.note(place, [record.offset for record in records])
        return fetched


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

    async def _wait_next_records(self, timeout: float) -> tuple[Mapping[TP, list[Any]] | None, set[TP] | None]:
        # While buffers are full all partitions are paused, and Faust sleeps for a second: buffers ran empty meanwhile.
        if self.flow_active and not self._get_active_partitions():
            await self.sleep(PAUSE_S)
            return {}, set()
        # Nor does it look again who is paused before it has waited for those that are not.
        within_s = min(timeout, FETCH_WAIT_MS / 1000)
        fetched: tuple[Mapping[TP, list[Any]] | None, set[TP] | None] = await super()._wait_next_records(within_s)
        return fetched

    def _new_offset(self, tp: Any) -> int | None:
        # Transactions commit: Faust would put an older offset behind theirs. Nor has it to remember anything then.
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        self._gap.pop(tp, None)
        return None


class _Transport(driver.Transport):
    Consumer: ClassVar[type[driver.Consumer]] = _CommittedConsumer


class _Flow(FlowControlEvent):
    def resume(self) -> None:
        # At the end of a recovery Faust lets the source partitions go and then resumes what flows already, which clears
        # the queues: records that had just come in were lost, and their offsets committed by those that followed.
        if not self.is_active():
            super().resume()


class _App(faust.App):
    @cached_property
    def flow_control(self) -> FlowControlEvent:
        return _Flow(loop=self.loop)

    @cached_property
    def passed_over(self) -> PassedOver:
        return PassedOver()


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
        # Before it asks anybody to let go, Faust would wait for the batch in hand to be acknowledged. That may ask
        # judges, or wait for a group that waits for this process: for ever. Whoever is asked to let go ends its batch.
        stream_wait_empty=False,
        # Faust looks for commits of its own, and would warn for ever.
        broker_commit_livelock_soft_timeout=float("inf"),
    )
    app.transport = _Transport(app.conf.broker_consumer, app)
    return app


async def assigned_by_group(app: faust.App, bootstrap: str, topics: Collection[str]) -> set[TP]:
    """Partitions of ``topics`` that the consumer group of ``app`` holds to be this process's, as of now.

    None while the group is rebalancing. Asks the group's coordinator, since a process that was frozen is the last to
    know. Raises aiokafka's errors.
    """
    consumer = cast("_CommittedConsumer", app.consumer)._thread._consumer
    assert consumer is not None, "asked before the app has started"
    own = consumer._coordinator.member_id
    async with open_admin(bootstrap) as admin:
        (described,) = await admin.describe_consumer_groups([str(app.conf.id)])
    found: set[TP] = set()
    for _, _, state, _, _, members, *_ in described.groups:
        for member_id, *_, assignment in (member[:6] for member in members if state == "Stable"):
            if member_id == own and assignment:
                places = ConsumerProtocol.ASSIGNMENT.decode(assignment).assignment
                found |= {TP(topic, number) for topic, numbers in places if topic in topics for number in numbers}
    return found


def passed_over(app: faust.App) -> PassedOver:
    """What the client of ``app`` found no records at."""
    return cast("_App", app).passed_over


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


class Beside(Protocol):
    """Something without Faust in it that runs on the same loop."""

    def __call__(self, *, stop: asyncio.Event, ready: Callable[[], None]) -> Awaitable[None]:
        """Run until ``stop`` is set, then finish and return; call ``ready`` once it serves."""


class _BesideService(Service):
    def __init__(self, run: Beside, ready: Callable[[], None]) -> None:
        super().__init__()
        self._run = run
        self._ready = ready
        self._stop_asked = asyncio.Event()
        self._ended = asyncio.Event()

    @Service.task  # an exception in it crashes the worker, as an agent's does
    async def _work(self) -> None:
        try:
            await self._run(stop=self._stop_asked, ready=self._ready)
        finally:
            self._ended.set()

    async def on_stop(self) -> None:
        self._stop_asked.set()
        await self._ended.wait()


class _Worker(faust.Worker):
    def __init__(
        self, apps: list[faust.App], beside: Sequence[Beside], ready: Callable[[], None], **options: Any
    ) -> None:
        self._starting = {*(app.conf.id for app in apps), *map(str, range(len(beside)))}
        self._apps = apps
        self._beside = [_BesideService(run, partial(self._serves, str(n))) for n, run in enumerate(beside)]
        self._ready = ready
        super().__init__(*apps, **options)

    def on_init_dependencies(self) -> Iterable[Any]:
        for app in self._apps:
            app.beacon.reattach(self.beacon)
            app.in_worker = True
            app.on_startup_finished = partial(self._app_started, app)
        for service in self._beside:
            service.beacon.reattach(self.beacon)
        return [*self._apps, *self._beside]

    async def _app_started(self, app: faust.App) -> None:
        self._serves(app.conf.id)

    def _serves(self, name: str) -> None:
        self._starting.discard(name)
        if not self._starting:
            self._ready()


class Sentences(logging.Filter):
    """What an operator can mend is told in its sentence, once. Faust and mode tell of an exception at every level that
    it passes, with a traceback each."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is written; one about an :class:`OperatorError` becomes its sentence."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, OperatorError):
            return True
        sentence = str(error)
        if sentence in self._told:
            return False
        self._told.add(sentence)
        record.msg, record.args, record.exc_info, record.exc_text = "%s", (sentence,), None, None
        return True


def run_apps(apps: list[faust.App], *, ready: Callable[[], None], beside: Sequence[Beside] = ()) -> int:
    """Run ``apps``, and what runs ``beside`` them, until SIGTERM or SIGINT.

    Returns the exit status: 0, or 1 where an agent, something beside or Faust itself failed.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    sentences = Sentences()
    for handler in logging.getLogger().handlers:
        handler.addFilter(sentences)
    worker = _Worker(apps, beside, ready, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        return int(ended.code or 0)
