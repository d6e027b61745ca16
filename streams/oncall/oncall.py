"""The process ``oncall``: measures the conditions every few seconds, and writes alerts about them to ``alerts``.

    Kafka's log ──tail──▶ Recent ─┐
    consumer groups ──lag─────────┼─▶ Alarms ──▶ alerts
    ledger ──fold─────────────────┘

One process is enough: a second one takes over (its producer fences the first). It has no state of its own: open
episodes are folded from ``alerts``, the offsets of a consumer group say which dead letters were judged, and the fold of
the ledger is kept in the cache.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_consumer, stop_producer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.fenced_producer import FencedProducer, Transaction, start_fenced_producer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, TRAINER_GROUPS, Topic, trainer_group
from headrace.schemas.wire import Message, record_message
from headrace.streams.lag import ConsumerLag, LagMeter
from headrace.streams.ledger.kept import kept_ledger
from headrace.streams.ledger.ledger import TOPICS_AGAINST_THE_STREAM, Ledger, LedgerReader, cut_topics
from headrace.streams.oncall import conditions
from headrace.streams.oncall.alarms import Alarms
from headrace.streams.oncall.conditions import Found, Limits
from headrace.streams.oncall.recent import Recent
from headrace.streams.oncall.tail import GROUP, Tail

logger = logging.getLogger(__name__)

SOURCE = "/streams/oncall"
"""``ce_source`` of the alerts."""
TRANSACTIONAL_ID = "headrace-oncall"
TRANSACTION_S = 20.0
"""Seconds after which the broker aborts a transaction of alerts."""
CONTRADICTIONS = 3
"""Contradictions of the ledger that an alert names."""


@dataclass(frozen=True, slots=True)
class OnCallConfig:
    """Settings of ``oncall``."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    cache: Path | None = None
    """Folder of the ledger's stored fold; ``None``: each start reads the whole log."""
    runs: tuple[str, ...] = ()
    """Training runs that must make steps and get rollouts."""
    ignore_groups: tuple[str, ...] = ()
    """Consumer groups whose lag does not matter, such as those that nobody uses any more."""
    every_s: float = 15.0
    """Seconds between two measurements."""
    ledger_every_s: float = 30.0
    """Seconds between two checks of the ledger, which reads every event once."""
    limits: Limits = field(default_factory=Limits)
    """From which values on there is an alert: {"lag_s": 600}."""

    def __post_init__(self) -> None:
        if not (self.every_s > 0 and self.ledger_every_s > 0):
            raise ValueError(
                f"every_s ({self.every_s}) and ledger_every_s ({self.ledger_every_s}) must be above 0 seconds"
            )


@dataclass(slots=True)
class Measured:
    """The newest measurements, for the metrics of the process."""

    values: Mapping[str, Sequence[Found]] = field(default_factory=lambda: MappingProxyType({}))
    """Values by condition."""
    monitors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Open alerts by monitor."""
    at_s: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the newest measurement, by what was measured."""

    def ages(self) -> dict[str, float]:
        """Returns the seconds since each measurement."""
        return {what: time.monotonic() - at for what, at in self.at_s.items()}


class _Lags:
    """The newest lags, which a task measures."""

    def __init__(self, measured: Measured, ignored: Collection[str]) -> None:
        self._found: list[Found] | None = None
        self._measured = measured
        self._ignored = {GROUP, *ignored}

    def fresh(self, within_s: float) -> list[Found] | None:
        """The lags, if they were measured within so many seconds."""
        return self._found if self._measured.ages().get("lag", within_s + 1) <= within_s else None

    async def write(self, lags: list[ConsumerLag], now_ms: int) -> None:
        self._found = lag_by_group([each for each in lags if each.group not in self._ignored])
        self._measured.at_s["lag"] = time.monotonic()


class _Alerts:
    """Writes alerts in transactions. After an error its producer is started again, which ends the last transaction:
    what ``alerts`` has then is what was written."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer: FencedProducer | None = None
        self.before: dict[TopicPartition, int] = {}
        """The ends of ``alerts`` when the producer was started, until that is read: the open transaction of another
        process may hide alerts of this one."""

    async def start(self) -> None:
        """Take up the transactional id, unless it is taken up. Raises aiokafka's errors."""
        if self._producer is not None:
            return
        producer = await start_fenced_producer(
            self._bootstrap, TRANSACTIONAL_ID, timeout_ms=round(TRANSACTION_S * 1000)
        )
        try:
            async with open_consumer(self._bootstrap, isolation_level="read_uncommitted") as consumer:
                self.before = await _ends(consumer, [ALERTS])
        except BaseException:
            await stop_producer(producer.kafka)
            raise
        self._producer = producer

    async def write(self, messages: Sequence[Message]) -> None:
        """Write ``messages``, all or none, after :meth:`start`. Raises aiokafka's errors, ``ProducerFenced`` if another
        process has taken over."""
        if self._producer is None:
            raise RuntimeError("start() comes first")

        async def send_all(transaction: Transaction) -> None:
            for message in messages:
                await transaction.send(ALERTS, message)

        try:
            await self._producer.transact(send_all, within_s=2 * TRANSACTION_S, what="a transaction of alerts")
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer.kafka)


@asynccontextmanager
async def _open_alerts(bootstrap: str) -> AsyncIterator[_Alerts]:
    alerts = _Alerts(bootstrap)
    try:
        await alerts.start()
        yield alerts
    finally:
        await alerts.stop()


@dataclass(slots=True)
class Checked:
    """The newest ledger, which a task reads."""

    ledger: Ledger | None = None
    """The ledger; ``None`` before the first check."""
    known: Container[str] = ()
    """Trajectories that it has."""
    at_ms: int = 0
    """Until when it has everything, Unix milliseconds: while a check takes long or fails, it is older than now."""


def lag_by_group(lags: Sequence[ConsumerLag]) -> list[Found]:
    """Returns the lag of each group in seconds: that of its partition that is furthest behind."""
    worst: dict[str, ConsumerLag] = {}
    records: dict[str, int] = {}
    for each in lags:
        records[each.group] = records.get(each.group, 0) + each.records
        if each.group not in worst or each.seconds > worst[each.group].seconds:
            worst[each.group] = each
    return [
        Found(
            group,
            each.seconds,
            details={"topic": each.topic, "partition": each.partition, "records": records[group]},
        )
        for group, each in worst.items()
    ]


def lags_that_count(lags: Sequence[Found], unfinished: Iterable[str]) -> list[Found]:
    """Returns ``lags`` without the groups of trainers whose run is not one of ``unfinished``: what a finished run has
    not trained waits for ever."""
    going = {trainer_group(run) for run in unfinished}
    return [each for each in lags if each.subject in going or not each.subject.startswith(TRAINER_GROUPS)]


def contradictions(ledger: Ledger) -> list[Found]:
    """Returns what is wrong with the ledger, if anything is."""
    if ledger.adds_up:
        return []
    count = ledger.conflicting + ledger.unreadable
    named = {f"contradiction {number}": each for number, each in enumerate(ledger.conflicts[:CONTRADICTIONS], 1)}
    return [Found("", max(1, count), details={"unreadable": ledger.unreadable, **named})]


async def run_oncall(
    config: OnCallConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    watch: Callable[[Measured], None] = lambda _: None,
) -> None:
    """Measure until ``stop`` is set. ``watch`` is called once with the measurements, which it may read at any time.

    What cannot be measured is logged, and its episodes stay as they are. Raises ``LookupError`` if a topic is missing
    at the start, aiokafka's errors if the broker does not answer then, and ``OperatorError`` if another process has
    taken over.
    """
    measured, clock_ms = Measured(), steady_clock()
    watch(measured)
    recent = Recent(config.runs, window_s=config.limits.window_s)
    alarms, lags = Alarms(config.limits), _Lags(measured, config.ignore_groups)
    async with (
        open_consumer(config.bootstrap, group=GROUP) as consumer,
        open_consumer(config.bootstrap) as unassigned,
        _open_alerts(config.bootstrap) as log,
    ):
        tail = Tail(config.bootstrap, consumer, recent, alarms, window_s=config.limits.window_s)
        await tail.start(clock_ms())
        checked = Checked()
        meter = LagMeter(config.bootstrap)
        beside = [
            asyncio.create_task(meter.run(interval_s=config.every_s, stop=stop, write=lags.write)),
            asyncio.create_task(_check_ledger(config, unassigned, checked, measured, clock_ms, stop)),
        ]
        try:
            ready()
            while not stop.is_set():
                for task in beside:
                    if task.done():
                        task.result()  # raises what has ended it
                try:
                    await log.start()
                    await tail.read(clock_ms())
                    if await tail.has_read(log.before):
                        log.before = {}
                        await _round(log, recent, alarms, lags.fresh(4 * config.every_s), checked, measured, clock_ms())
                        await tail.commit()
                    else:
                        logger.warning("the conditions are measured when open transactions in alerts have ended")
                except ProducerFenced as error:
                    raise OperatorError("another process oncall has taken over: run only one") from error
                except (KafkaError, OSError) as error:
                    logger.warning("the conditions were not measured: %s", error or type(error).__name__)
                await _pause(stop, config.every_s)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _round(
    log: _Alerts,
    recent: Recent,
    alarms: Alarms,
    lags: list[Found] | None,
    checked: Checked,
    measured: Measured,
    now: int,
) -> None:
    counted = None if lags is None else lags_that_count(lags, recent.unfinished)
    values = values_of(recent, counted, checked, now)
    measured.values, measured.monitors = values, recent.open_monitors
    measured.at_s["kafka"] = time.monotonic()
    alerts = alarms.judge(values, now)
    if not alerts:
        return
    time_ms = now_ms()
    await log.write([alert_message(alert, time_ms) for alert in alerts])
    for alert in alerts:
        alarms.add(alert)
        logger.warning("%s", alert.message)


def values_of(recent: Recent, lags: Sequence[Found] | None, checked: Checked, now: int) -> dict[str, Sequence[Found]]:
    """Returns the values of the conditions that can be told at ``now`` (Unix milliseconds). ``lags``: ``None`` if they
    are not known. Feedback is lost as of the ledger's time: what has arrived since may be about new trajectories.
    """
    values: dict[str, Sequence[Found]] = {
        conditions.DEAD_LETTERS.name: recent.dead_letters(now),
        conditions.NO_STEPS.name: recent.step_ages(now),
        conditions.SILENT_SAMPLERS.name: recent.rollout_ages(now),
        conditions.SDK_DROPS.name: recent.sdk_drops(now),
    }
    if lags is not None:
        values[conditions.LAG.name] = lags
    if checked.ledger is not None:
        values[conditions.LEDGER_MISMATCH.name] = contradictions(checked.ledger)
        values[conditions.LOST_FEEDBACK.name] = recent.lost_feedback(checked.at_ms, checked.known)
    return values


async def _check_ledger(
    config: OnCallConfig,
    consumer: ReportingConsumer,
    checked: Checked,
    measured: Measured,
    clock_ms: Callable[[], int],
    stop: asyncio.Event,
) -> None:
    """Keep the newest ledger in ``checked``, until ``stop`` is set. Its topics are read only if one has grown: their
    ends come from ``consumer``, which has no assignment, while a reading opens a consumer for each."""
    reader: LedgerReader | None = None
    read: dict[TopicPartition, int] | None = None
    while not stop.is_set():
        try:
            began_ms = clock_ms()
            ends = await _ends(consumer, TOPICS_AGAINST_THE_STREAM)
            if reader is None:
                reader = await kept_ledger(config.bootstrap, config.cache)
            if ends != read:
                await reader.catch_up()
                checked.ledger = reader.tally.ledger(cut=await cut_topics(config.bootstrap))
                checked.known, read = reader.tally.accounts, ends
            checked.at_ms = began_ms
            measured.at_s["ledger"] = time.monotonic()
        except (KafkaError, LookupError, OSError) as error:
            logger.warning("the ledger could not be checked: %s", error or type(error).__name__)
        await _pause(stop, config.ledger_every_s)


async def _ends(consumer: ReportingConsumer, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
    places = [place for topic in topics for place in await partitions_of(consumer, topic)]
    ends: dict[TopicPartition, int] = await consumer.end_offsets(places)
    return ends


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def alert_message(alert: Alert, time_ms: int) -> Message:
    """Returns an alert of an episode as a record of ``alerts``. ``time_ms``: Unix milliseconds.

    Raises ``ValueError`` if it belongs to no episode.
    """
    if alert.episode is None:
        raise ValueError(f"the alert {alert.kind} belongs to no episode")
    return record_message(
        alert,
        id=derived_id(Alert.TYPE, alert.episode.id, alert.episode.state),
        key=alert.run,
        source=SOURCE,
        time_ms=time_ms,
        subject=alert.run or alert.episode.monitor,
    )


def now_ms() -> int:
    """Returns Unix milliseconds."""
    return time.time_ns() // 1_000_000


def steady_clock() -> Callable[[], int]:
    """Returns a clock in Unix milliseconds that begins at the present time and then runs evenly. If the machine's clock
    is set back or forward, or the machine was suspended, no run seems to have made a step lately, or none for hours."""
    begun_ms, begun_s = now_ms(), time.monotonic()
    return lambda: begun_ms + round(1000 * (time.monotonic() - begun_s))
