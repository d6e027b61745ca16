"""Reads from ``alerts`` which agents and task sources are not admitted: all of it at the start, then what is new.

The decisions that follow are durable before they are published, like all of admission (``steps/gather.py``): a trainer
that is restarted in between decides again, by the alerts of that moment, about groups whose fate nobody has seen.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.kafka.reading import AT_ONCE, KafkaRecord, Stall, next_records, partitions_of
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.trainer.admission.intake import Retry, call_once
from headrace.trainer.admission.pauses import NOTHING_PAUSED, Paused, Pauses
from headrace.trainer.retries.broker import broker_errors

_log = logging.getLogger(__name__)


class PauseReader:
    """Follows ``alerts`` for one run."""

    def __init__(self, bootstrap: str, consumer: ReportingConsumer, *, run: str, retry: Retry) -> None:
        """Reads through a consumer without assignment; see :func:`open_pause_reader`."""
        self._bootstrap = bootstrap
        self._consumer = consumer
        self._run = run
        self._retry = retry
        self._pauses = Pauses(run)
        self._told: Paused = NOTHING_PAUSED

    async def start(self) -> None:
        """Read ``alerts`` to its end."""
        await self._reading()
        self._tell()

    async def _reading(self) -> None:
        async def once() -> None:
            with broker_errors(self._bootstrap, "read alerts"):
                self._pauses = await self._all()

        await self._retry(once)

    async def _all(self) -> Pauses:
        """Returns what all alerts so far say; the next record is the first that is not among them."""
        pauses, places = Pauses(self._run), await partitions_of(self._consumer, ALERTS)
        begins, ends = await self._consumer.beginning_offsets(places), await self._consumer.end_offsets(places)
        self._consumer.assign(places)
        for place in places:
            self._consumer.seek(place, begins[place])
        stall = Stall()
        while (positions := await self._positions(places)) and any(at < ends[place] for place, at in positions.items()):
            stall.moved_to(positions)
            for records in (await next_records(self._consumer, places, AT_ONCE)).values():
                for record in records:
                    _add(pauses, record)
        return pauses

    async def _positions(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: await self._consumer.position(place) for place in places}

    async def current(self) -> Paused:
        """Returns what is not admitted, by the alerts that have arrived."""
        for records in (await self._consumer.getmany(timeout_ms=0)).values():
            for record in records:
                _add(self._pauses, record)
        return self._tell()

    def _tell(self) -> Paused:
        now = self._pauses.paused
        for source, ids in self._pauses.episodes(now - self._told).items():
            _log.warning(
                "admission of %s is paused by the alert %s: its trajectories are rejected as admission_paused until it "
                "is resolved, or until `headrace watch ack %s --by NAME --resume`",
                _named(*source), ids[0], ids[0],
            )  # fmt: skip
        for source in sorted(self._told - now):
            _log.warning("admission of %s is resumed", _named(*source))
        self._told = now
        return now


def _named(agent: str, task_source: str) -> str:
    return f"agent {agent}, " + (f"task source {task_source}" if task_source else "tasks without a source")


def _add(pauses: Pauses, record: KafkaRecord) -> None:
    try:
        _, alert = decode(record.headers, record.value)
    except UnreadableRecord as error:  # the sink makes a dead letter of it
        _log.warning("alerts %d:%d cannot be read: %s", record.partition, record.offset, error)
        return
    if isinstance(alert, Alert):
        pauses.add(alert)


@asynccontextmanager
async def open_pause_reader(
    bootstrap: str, *, run: str, answer_s: float = 30.0, retry: Retry = call_once
) -> AsyncIterator[PauseReader]:
    """Open a reader of the pauses of ``run``. ``answer_s`` and ``retry``: as in ``intake.open_intake``."""
    options: dict[str, Any] = {"request_timeout_ms": round(answer_s * 1000)}
    async with AsyncExitStack() as stack:
        with broker_errors(bootstrap, "read alerts"):
            consumer = await stack.enter_async_context(open_consumer(bootstrap, on_expired=skip_expired, **options))
        yield PauseReader(bootstrap, consumer, run=run, retry=retry)
