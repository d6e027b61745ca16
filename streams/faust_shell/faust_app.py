"""Faust as headrace runs it: it reads committed records only, and leaves offset commits to the processors.

By default Faust reads uncommitted records outside its own (unreliable) exactly-once mode, and it restarts or abandons
an agent that raised. Here the consumer is read_committed, an exception in an agent ends the process, and Faust commits
nothing: outputs are written in one transaction with the offset of their input (``owned_partition.py``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Protocol, cast

import aiokafka
import faust
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.services import Service
from mode.supervisors import CrashingSupervisor
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.kafka.consumer import ReplacedLog, known_position, read_on, start_at
from headrace.schemas.kafka.expired import ExpiredRange
from headrace.schemas.kafka.security import with_security
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import Topic
from headrace.streams.faust_shell.skipped_offsets import SkippedOffsets
from headrace.streams.interruptions import without_exits
from headrace.streams.raw import LogRecord

logger = logging.getLogger(__name__)

BATCH_WITHIN_S = 0.05
"""Seconds to wait for a batch to fill: the latency that a stage adds to a single trajectory."""
FLOW_WITHIN_S = 0.1
"""The same in a flow: for records that arrive within so many seconds after the batch before them. A transaction takes
as much processor time as scoring 20 trajectories, whatever it holds."""
FETCH_WAIT_MS = 100
"""How long a broker holds a fetch request without records. Only one request per broker is in flight: while it is held
for an idle partition, busy partitions get no records. Faust's default is 1.5 s."""
PAUSE_S = 0.02
"""Seconds between two checks whether full buffers have space again."""
_BUFFERED_FETCHES = 8
"""Fetches that a stream buffers before its partitions are paused."""
MEMBER_LOST_S = 10.0
"""Session timeout: after this many seconds without a heartbeat, a dead worker's partitions are reassigned. Faust's
default is a minute."""


class _CommittedConsumerThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no settings for these; the client reads the attributes when it starts.
        consumer._isolation_level = "read_committed"
        consumer._auto_offset_reset = "none"  # Expired records must not be skipped silently: _fetch_records.
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        # Partition p of every topic goes to the same member: of `trajectories` and of `feedback` too.
        consumer._partition_assignment_strategy = (RangePartitionAssignor,)
        return consumer

    def _stopped_set(self) -> None:
        # A thread that has ended by itself has closed its loop, and nothing waits for the event any more. Without this,
        # the sentence about why a worker ends is followed by a traceback.
        with suppress(RuntimeError):
            super()._stopped_set()

    async def _fetch_records(self, *args: Any, **options: Any) -> Mapping[TP, list[Any]]:
        app = cast("_App", self.app)
        try:
            fetched: Mapping[TP, list[Any]] = await super()._fetch_records(*args, **options)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            await self._place(error)
            return {}
        skipped_offsets = app.skipped_offsets
        for place, records in fetched.items():
            skipped_offsets.note(place, [record.offset for record in records])
        return {place: [_Fetched(records)] for place, records in fetched.items() if records}

    async def position(self, tp: TP) -> int | None:
        # Faust's waits for a position on the thread that would set it.
        position: int | None = await self.call_thread(self._position_now, tp)
        return position

    async def _position_now(self, tp: TP) -> int | None:
        consumer = self._ensure_consumer()
        place = aiokafka.TopicPartition(tp.topic, tp.partition)
        if place not in consumer.assignment():
            raise IllegalStateError(f"{tp.topic}[{tp.partition}] is not assigned")
        return known_position(consumer, place)

    async def _place(self, error: OffsetOutOfRangeError | NoOffsetForPartitionError) -> None:
        """Read on where the log has records. While the broker does not answer, the next fetch raises again."""
        consumer = self._ensure_consumer()
        try:
            if isinstance(error, NoOffsetForPartitionError):
                await start_at(consumer, "earliest")
            else:
                app = cast("_App", self.app)
                app.expired.extend(await read_on(consumer, error.args[0], app.replaced.append))
        except (KafkaError, IllegalStateError) as failed:  # also if the partition was reassigned
            logger.info("a partition's position is not known yet: %r", failed)


class _Fetched:
    """The records that a fetch returned of one partition, as a single record for Faust.

    Faust's path from the consumer to a stream takes 40 to 60 µs of processor time per record, more than scoring one.
    """

    timestamp_type = checksum = key = None
    headers = ()
    serialized_key_size = serialized_value_size = -1

    def __init__(self, records: Sequence[Any]) -> None:
        self.value = records
        last = records[-1]
        self.topic, self.partition, self.offset = last.topic, last.partition, last.offset
        self.timestamp = last.timestamp


class _Lists(faust.Schema[Any, Any]):
    """Values that are lists of records, not bytes."""

    def compile(self, app: Any, **_: Any) -> Any:
        async def decode(message: Any, *, propagate: bool = False) -> Any:
            return app.create_event(None, message.value, message.headers, message)

        return decode


class _CommittedConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> _CommittedConsumerThread:
        return _CommittedConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _wait_next_records(self, timeout: float) -> tuple[Mapping[TP, list[Any]] | None, set[TP] | None]:
        # While buffers are full, all partitions are paused and Faust would sleep for a second: buffers would run dry.
        if self.flow_active and not self._get_active_partitions():
            await self.sleep(PAUSE_S)
            return {}, set()
        # Faust rechecks paused partitions only after it has waited for the active ones, so that wait must be short.
        # Without any it is not: each costs a request to the client's thread, a third of an idle process's time.
        within_s = min(timeout, PAUSE_S) if self._buffered_partitions else timeout
        fetched: tuple[Mapping[TP, list[Any]] | None, set[TP] | None] = await super()._wait_next_records(within_s)
        return fetched


class _Transport(driver.Transport):
    Consumer: ClassVar[type[driver.Consumer]] = _CommittedConsumer


class _Flow(FlowControlEvent):
    def resume(self) -> None:
        # At the end of a recovery Faust resumes the source partitions and then resumes the already active flow, which
        # clears the queues: records that had just arrived were lost, and later records committed past them.
        if not self.is_active():
            super().resume()


class _App(faust.App):
    @cached_property
    def flow_control(self) -> FlowControlEvent:
        return _Flow(loop=self.loop)

    @cached_property
    def skipped_offsets(self) -> SkippedOffsets:
        return SkippedOffsets()

    @cached_property
    def expired(self) -> deque[ExpiredRange]:
        return deque()

    @cached_property
    def replaced(self) -> deque[ReplacedLog]:
        return deque()


def new_app(name: str, bootstrap: str, folder: Path, *, batch: int, member: str | None = None) -> faust.App:
    """Returns an app with the consumer group ``name`` on ``bootstrap`` (Kafka brokers, ``host:port``, comma-separated).

    A fetch returns at most ``batch`` records, and each stream buffers a few fetches. A named ``member`` that dies and
    restarts within ``MEMBER_LOST_S`` gets its partitions back immediately.
    """
    folder.mkdir(parents=True, exist_ok=True)
    app = _App(
        name,
        broker=";".join(f"kafka://{address.strip()}" for address in bootstrap.split(",")),
        broker_credentials=credentials_of(with_security({})),
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
        stream_buffer_maxsize=_BUFFERED_FETCHES,
        # Before a revocation Faust would wait until the current batch is acknowledged. The batch may wait for judges,
        # or for a group that waits for this process: a deadlock. The processor ends its batch on revocation instead.
        stream_wait_empty=False,
        # Faust monitors its own commits, of which there are none, and would warn for ever.
        broker_commit_livelock_soft_timeout=float("inf"),
    )
    app.transport = _Transport(app.conf.broker_consumer, app)
    return app


def credentials_of(options: Mapping[str, Any]) -> faust.SSLCredentials | faust.SASLCredentials | None:
    """Returns Faust's form of aiokafka's ``options`` of TLS and SASL; ``None`` if there are none."""
    match options.get("security_protocol", "PLAINTEXT"):
        case "PLAINTEXT":
            return None
        case "SSL":
            return faust.SSLCredentials(options["ssl_context"])
        case _:
            return faust.SASLCredentials(
                username=options["sasl_plain_username"],
                password=options["sasl_plain_password"],
                ssl_context=options.get("ssl_context"),
                mechanism=options["sasl_mechanism"],
            )


async def assigned_by_group(app: faust.App, bootstrap: str, topics: Collection[str]) -> set[TP]:
    """Returns the partitions of ``topics`` that the consumer group of ``app`` currently assigns to this process.

    None while the group is rebalancing. Queries the group coordinator, because a process that was frozen may not know
    of a rebalance. Raises aiokafka's errors.
    """
    consumer = cast("_CommittedConsumer", app.consumer)._thread._consumer
    assert consumer is not None, "called before the app has started"
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


def skipped_offsets(app: faust.App) -> SkippedOffsets:
    """Returns the offsets at which the client of ``app`` found no records."""
    return cast("_App", app).skipped_offsets


def take_expired(app: faust.App) -> list[ExpiredRange]:
    """Returns what the client of ``app`` has skipped since the last call, because retention had deleted it."""
    expired = cast("_App", app).expired
    return [expired.popleft() for _ in range(len(expired))]


def take_replaced(app: faust.App) -> list[ReplacedLog]:
    """Returns the logs that the client of ``app`` has found since the last call to end before what it had read."""
    replaced = cast("_App", app).replaced
    return [replaced.popleft() for _ in range(len(replaced))]


def lists_of(app: faust.App, topic: Topic) -> faust.TopicT:
    """Returns ``topic`` as a channel whose values are lists of undecoded records of one partition.

    Faust tracks no acknowledgements, because it commits no offsets: a commit by Faust would overwrite the offset that a
    transaction committed.
    """
    return app.topic(topic.name, schema=_Lists(), acks=False)


async def batches(app: faust.App, stream: Any, size: int) -> AsyncIterator[tuple[list[LogRecord], int]]:
    """Yields the records that arrive in ``stream`` of :func:`lists_of`, at most ``size`` at a time, each batch with the
    generation of the consumer group in which it was read; waits :data:`BATCH_WITHIN_S` for a batch to fill, and in a
    flow :data:`FLOW_WITHIN_S`.
    """
    queue = stream.channel.queue
    flows_until = 0.0
    async for _ in stream:
        events = [stream.current_event]
        try:
            if not _fill(events, queue, size):
                await asyncio.sleep(FLOW_WITHIN_S if monotonic() < flows_until else BATCH_WITHIN_S)
                _fill(events, queue, size)
        except StopAsyncIteration:
            return  # The agent stops, which Faust puts into the queue; these records were not processed.
        generation = app.consumer_generation_id
        records = [record for event in events if event.message.generation_id == generation for record in event.value]
        for start in range(0, len(records), size):
            yield records[start : start + size], generation
        flows_until = monotonic() + FLOW_WITHIN_S


def _fill(events: list[faust.Event], queue: ThrowableQueue[faust.Event], size: int) -> bool:
    """Add events that are in ``queue`` until ``events`` have ``size`` records; whether they have."""
    count = sum(len(event.value) for event in events)
    while count < size and not queue.empty():
        events.append(queue.get_nowait())
        count += len(events[-1].value)
    queue.maybe_endorse_pressure_drop()  # fetch while this batch is processed, and not only at the next one
    return count >= size


class SideTask(Protocol):
    """A coroutine without Faust that runs on the same event loop."""

    def __call__(self, *, stop: asyncio.Event, ready: Callable[[], None]) -> Awaitable[None]:
        """Run until ``stop`` is set, then finish and return; call ``ready`` once it serves."""


class _SideTaskService(Service):
    def __init__(self, run: SideTask, ready: Callable[[], None]) -> None:
        super().__init__()
        self._run = run
        self._ready = ready
        self._stop_asked = asyncio.Event()
        self._ended = asyncio.Event()

    @Service.task  # an exception in it crashes the worker, as an agent's does
    async def _work(self) -> None:
        try:
            await without_exits(self._run(stop=self._stop_asked, ready=self._ready), "a side task")
        finally:
            self._ended.set()

    async def on_stop(self) -> None:
        self._stop_asked.set()
        await self._ended.wait()


class _Worker(faust.Worker):
    def __init__(
        self, apps: list[faust.App], side_tasks: Sequence[SideTask], ready: Callable[[], None], **options: Any
    ) -> None:
        self._starting = {*(app.conf.id for app in apps), *map(str, range(len(side_tasks)))}
        self._apps = apps
        self._side_tasks = [_SideTaskService(run, partial(self._serves, str(n))) for n, run in enumerate(side_tasks)]
        self._ready = ready
        super().__init__(*apps, **options)

    def on_init_dependencies(self) -> Iterable[Any]:
        for app in self._apps:
            app.beacon.reattach(self.beacon)
            app.in_worker = True
            app.on_startup_finished = partial(self._app_started, app)
        for service in self._side_tasks:
            service.beacon.reattach(self.beacon)
        return [*self._apps, *self._side_tasks]

    async def _app_started(self, app: faust.App) -> None:
        self._serves(app.conf.id)

    def _serves(self, name: str) -> None:
        self._starting.discard(name)
        if not self._starting:
            self._ready()


class OneLineErrors(logging.Filter):
    """Logs an :class:`OperatorError` once, as its message. Faust and mode log an exception at every level that it
    passes, each time with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log ``record``; a record about an :class:`OperatorError` is reduced to its message."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, OperatorError):
            return True
        sentence = str(error)
        if sentence in self._reported:
            return False
        self._reported.add(sentence)
        record.msg, record.args, record.exc_info, record.exc_text = "%s", (sentence,), None, None
        return True


def run_apps(apps: list[faust.App], *, ready: Callable[[], None], side_tasks: Sequence[SideTask] = ()) -> int:
    """Run ``apps`` and ``side_tasks`` until SIGTERM or SIGINT.

    Returns the exit status: 0, or 1 if an agent, a side task or Faust itself failed.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    one_line = OneLineErrors()
    for handler in logging.getLogger().handlers:
        handler.addFilter(one_line)
    worker = _Worker(apps, side_tasks, ready, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        return int(ended.code or 0)
