"""At its start a gateway reads what it, and the gateways beside it, have recorded: from its disk, and from Kafka.

    spool  ──┐
             ├─▶ RestoreFold ─▶ nodes, sessions          then the gateway listens
    events ──┘

The topic is read from the time on since which a session may be open, and then further back, for the trajectories that
began before it, in steps that double. All of it ends within a time. What was read by then counts, as far as it can.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from headrace.agents.gateway.nodes import NodeStore
from headrace.agents.gateway.restore.fold import Latest, Restored, RestoreFold
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.spool_frames import Loss
from headrace.agents.spool_segments import left_on_disk
from headrace.schemas.envelope import SUBJECT
from headrace.schemas.ids import time_of
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import report_expired
from headrace.schemas.kafka.reading import AT_ONCE, partitions_of, scan
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import EVENTS

_Offsets: TypeAlias = dict[TopicPartition, int]

_log = logging.getLogger(__name__)

CONNECT_S: Final = 5.0
"""Longest wait for Kafka's first answer, in seconds: a gateway starts without a Kafka that is away."""

RETRY_S: Final = 0.5
"""Pause between two attempts, in seconds."""

SLACK_MS: Final = 60_000
"""Largest difference that is expected between the clocks of gateways and brokers, in milliseconds."""

PROGRESS_S: Final = 5.0
"""Time between two lines of the log, in seconds."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the records are."""

    spool: Path
    """Folder of the spool."""
    cluster: bytes
    """The cluster that its records are for (``cluster_fingerprint``)."""
    bootstrap: str
    """Kafka's address."""


async def restore(
    fold: RestoreFold, places: Places, nodes: NodeStore, sessions: SessionStore, *, idle_s: float, within_s: float
) -> Restored:
    """Read what is on record, within ``within_s`` seconds, into ``nodes`` and ``sessions``, which are empty.

    ``idle_s``: seconds without a request after which a session ends.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    # The disk first: what leaves it meanwhile is in Kafka by the time Kafka is read.
    latest = await asyncio.to_thread(_read_spool, fold, places, time.monotonic() + within_s)
    topic = _Topic(fold, began)
    try:
        async with asyncio.timeout_at(began + within_s):
            await topic.read(places.bootstrap, int(idle_s * 1000))
    except (KafkaError, OSError, TopicsError, TimeoutError) as error:
        _log.warning(
            "Kafka's events could not all be read (%s): conversations of which some are missing start a new segment or "
            "trajectory. If Kafka answers and this is too little time, raise gateway.restore_s (%g)",
            str(error) or type(error).__name__, within_s,
        )  # fmt: skip
    if latest is not Latest.OF_NONE and topic.is_whole:
        latest = Latest.OF_ALL
    restored = fold.restore(nodes, sessions, latest)
    _log.info(
        "restored %d answers, %d sessions and %d trajectories from %d events in %.1f s; left out: %d answers without a "
        "known prefix, %d events that are not signed with this gateway's secret",
        restored.nodes, restored.sessions, restored.trajectories, fold.events, loop.time() - began, restored.left_out,
        fold.refused,
    )  # fmt: skip
    return restored


def _read_spool(fold: RestoreFold, places: Places, until_s: float) -> Latest:
    """Runs on a thread, until ``until_s`` of the monotonic clock."""
    losses: list[Loss] = []
    try:
        for record in left_on_disk(places.spool, places.cluster, losses.append):
            if record.topic == EVENTS.name:
                fold.add(record.headers, record.value, is_spooled=True)
            if time.monotonic() > until_s:
                _log.warning("the spool could not be read in time: raise gateway.restore_s")
                return Latest.OF_NONE
    except OSError as error:
        _log.error("the spool in %s cannot be read: %s", places.spool, error)
        return Latest.OF_NONE
    # The end of a file that was being written: nobody was told that it is recorded.
    return Latest.OF_SPOOLED if all(loss.is_torn for loss in losses) else Latest.OF_NONE


class _Topic:
    """Reads the topic of events into a fold."""

    def __init__(self, fold: RestoreFold, began: float) -> None:
        """``began``: when, by the event loop's clock."""
        self.is_whole = False
        """Whether everything since the time that was asked for has been read."""
        self._fold = fold
        self._reported = began
        self._read = 0

    async def read(self, bootstrap: str, idle_ms: int) -> None:
        """Read what was written in the last ``idle_ms`` milliseconds, and what precedes it of the trajectories in it.

        Raises ``KafkaError``, :class:`TopicsError` and ``TimeoutError``.
        """
        async with AsyncExitStack() as stack:
            consumer, places = await _opened(stack, bootstrap)
            now_ms, reach_ms = time.time_ns() // 1_000_000, idle_ms + SLACK_MS
            first, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
            since = await _offsets(consumer, ends, now_ms - reach_ms)
            await self._take(consumer, since, ends)
            self.is_whole = True
            while (wanted := _began_before(self._fold.unbegun(), now_ms - reach_ms + SLACK_MS)) and since != first:
                reach_ms *= 2
                earlier = await _offsets(consumer, since, now_ms - reach_ms)
                await self._take(consumer, earlier, since, wanted)
                since = earlier

    async def _take(
        self, consumer: AIOKafkaConsumer, start: _Offsets, stop: _Offsets, wanted: frozenset[str] | None = None
    ) -> None:
        """Take the events between two offsets, of the trajectories in ``wanted`` or of all."""
        begins, ends = ({place.partition: offset for place, offset in each.items()} for each in (start, stop))
        async with aclosing(scan(consumer, list(start), start=begins, stop=ends)) as records:
            async for record in records:
                if wanted is None or _subject(record.headers) in wanted:
                    self._fold.add(record.headers, record.value)
                self._read += 1
                if not self._read % AT_ONCE:
                    self._report()

    def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._reported >= PROGRESS_S:
            self._reported = now
            _log.info("%d records read, %d of them gateways' events", self._read, self._fold.events)


async def _opened(stack: AsyncExitStack, bootstrap: str) -> tuple[AIOKafkaConsumer, list[TopicPartition]]:
    """Return a consumer that ``stack`` closes, and the partitions of the topic.

    Raises ``KafkaConnectionError`` if nobody listens, and ``TimeoutError``.
    """
    async with asyncio.timeout(CONNECT_S):
        while True:
            try:
                # Gateways write without transactions: those of others must not hide what they wrote.
                report = partial(report_expired, "gateway")
                opening = open_consumer(bootstrap, isolation_level="read_uncommitted", on_expired=report)
                consumer = await stack.enter_async_context(opening)
                return consumer, await partitions_of(consumer, EVENTS)
            except KafkaConnectionError:
                raise
            except KafkaError as error:  # a broker that has just come back
                _log.info("Kafka at %s does not answer yet: %s", bootstrap, error)
                await asyncio.sleep(RETRY_S)


async def _offsets(consumer: AIOKafkaConsumer, ends: _Offsets, time_ms: int) -> _Offsets:
    """Return the offsets of the first records since ``time_ms``, at most ``ends``."""
    found = await consumer.offsets_for_times(dict.fromkeys(ends, max(0, time_ms)))
    return {place: end if (at := found[place]) is None else min(at.offset, end) for place, end in ends.items()}


def _began_before(trajectories: frozenset[str], time_ms: int) -> frozenset[str]:
    """Return those whose ids, which are UUIDv7, are from before ``time_ms``."""
    return frozenset(each for each in trajectories if (at := time_of(each)) is not None and at < time_ms)


def _subject(headers: Sequence[tuple[str, bytes]]) -> str:
    return (dict(headers).get(SUBJECT) or b"").decode("utf-8", "replace")
