"""How far every consumer group is behind, in records and in seconds: a gauge, so a missed sample is no loss.

    group     topic         partition   records   seconds
    assemble  events        2              1840      0.31     1,840 offsets to go, the next of them 0.31 s old

A group's place is its committed offset; the assembler's stands in the commit's metadata, as what it commits is the
first event of its oldest open trajectory.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_admin, open_consumer
from headrace.schemas.topics import TOPICS
from headrace.streams.assembly.recovery import checkpoint_of

log = logging.getLogger(__name__)

OTHERS_A_ROUND = 64
"""Groups that had no place in headrace's topics and are asked again in one measurement, in turns: a broker that others
use too may know thousands."""

_ASKED_AT_ONCE = 16
"""Groups whose places are asked side by side."""

_PEEK_S = 1.0
"""How long the next records of groups that are behind are waited for."""

_PEEK_BYTES = 64 * 1024
"""Fetched of a partition to see the time of one record; Kafka gives at least one record, however large."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance of one group from the end of one partition."""

    group: str
    """Consumer group."""
    topic: str
    """Topic."""
    partition: int
    """Partition."""
    records: int
    """Offsets between the group's place and the end; transaction markers count."""
    seconds: float
    """Age of the next record that the group has not taken; 0 where there is none."""


def place_of(commit: OffsetAndMetadata) -> int:
    """The next offset that the group behind ``commit`` has not taken; −1 where it committed nothing."""
    checkpoint = checkpoint_of(commit.metadata or "")
    return max(checkpoint.next, commit.offset) if checkpoint else int(commit.offset)


def lags(
    places: Mapping[str, Mapping[TopicPartition, int]],
    ends: Mapping[TopicPartition, int],
    next_ms: Mapping[tuple[TopicPartition, int], int],
    now_ms: int,
) -> list[Lag]:
    """The lag of every group in each partition it has a place in. ``next_ms``: time of the record at a place."""
    return [
        Lag(
            group,
            partition.topic,
            partition.partition,
            max(ends[partition] - place, 0),
            max(now_ms - next_ms.get((partition, place), now_ms), 0) / 1000,
        )
        for group, found in sorted(places.items())
        for partition, place in sorted(found.items())
        if partition in ends and place >= 0
    ]


class Groups:
    """Which groups to ask for their places: ours and new ones every time, strangers now and then."""

    def __init__(self) -> None:
        self._strangers: dict[str, None] = {}

    def due(self, names: Iterable[str]) -> list[str]:
        """Those of ``names``, all groups of the broker, that are to be asked now."""
        known = set(names)
        self._strangers = {name: None for name in self._strangers if name in known}
        again = list(self._strangers)[:OTHERS_A_ROUND]
        return sorted((known - self._strangers.keys()) | set(again))

    def told(self, name: str, ours: bool) -> None:
        """``ours``: whether ``name`` has places in headrace's topics."""
        self._strangers.pop(name, None)
        if not ours:
            self._strangers[name] = None  # behind all others, which are asked again before it


class LagMeter:
    """Measures on one broker; opened by :meth:`run`."""

    def __init__(self, bootstrap: str, *, groups: Iterable[str] | None = None) -> None:
        """``groups`` to measure; unset: every group that has committed offsets of headrace's topics."""
        self.latest: list[Lag] = []
        """The last measurement."""
        self._bootstrap = bootstrap
        self._groups = None if groups is None else sorted(groups)

    async def run(
        self,
        *,
        interval_s: float,
        stop: asyncio.Event,
        write: Callable[[list[Lag], int], Awaitable[None]] | None = None,
    ) -> None:
        """Measure every ``interval_s`` seconds until ``stop``, and hand lags and time (Unix ms) to ``write``.

        A measurement that fails is logged and left out.
        """
        known = Groups()
        async with _clients(self._bootstrap) as (admin, consumer):
            while not stop.is_set():
                try:
                    now_ms = _now_ms()
                    self.latest = await _measure(admin, consumer, self._groups, now_ms, known)
                    if write is not None and self.latest:
                        await write(self.latest, now_ms)
                except (KafkaError, OSError) as error:
                    log.warning("the lag was not measured: %s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await stop.wait()


async def measure_lag(bootstrap: str, groups: Iterable[str] | None = None) -> list[Lag]:
    """The lag of ``groups`` as of now, or of every group that has committed offsets of headrace's topics."""
    async with _clients(bootstrap) as (admin, consumer):
        return await _measure(admin, consumer, None if groups is None else sorted(groups), _now_ms(), Groups())


@asynccontextmanager
async def _clients(bootstrap: str) -> AsyncIterator[tuple[AIOKafkaAdminClient, AIOKafkaConsumer]]:
    async with (
        open_admin(bootstrap) as admin,
        open_consumer(bootstrap, max_partition_fetch_bytes=_PEEK_BYTES) as consumer,
    ):
        yield admin, consumer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _measure(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer, groups: list[str] | None, now_ms: int, known: Groups
) -> list[Lag]:
    names = {topic.name for topic in TOPICS}
    if groups is None:
        groups = known.due(group for group, *_ in await admin.list_consumer_groups())
    places: dict[str, dict[TopicPartition, int]] = {}
    for at in range(0, len(groups), _ASKED_AT_ONCE):
        asked = groups[at : at + _ASKED_AT_ONCE]
        answers = await asyncio.gather(*map(admin.list_consumer_group_offsets, asked))
        for group, commits in zip(asked, answers, strict=True):
            ours = {partition: place_of(commit) for partition, commit in commits.items() if partition.topic in names}
            known.told(group, bool(ours))
            if ours:
                places[group] = ours
    partitions = {partition for ours in places.values() for partition in ours}
    # Ends after commits: the other way round, a group could seem to be ahead of the log.
    ends = await consumer.end_offsets(list(partitions)) if partitions else {}
    behind = {
        (partition, place)
        for ours in places.values()
        for partition, place in ours.items()
        if 0 <= place < ends.get(partition, 0)
    }
    return lags(places, ends, await _times(consumer, behind), now_ms)


def measure_aside(bootstrap: str, groups: Iterable[str], *, interval_s: float = 5.0) -> LagMeter:
    """A meter at work in a thread of its own, until the process ends: for processes whose loop is somebody else's."""
    meter = LagMeter(bootstrap, groups=groups)

    def measure() -> None:
        try:
            asyncio.run(meter.run(interval_s=interval_s, stop=asyncio.Event()))
        except KafkaError as error:
            log.warning("the lag is not measured: %s", error)

    threading.Thread(target=measure, name="lag", daemon=True).start()
    return meter


async def _times(
    consumer: AIOKafkaConsumer, places: Iterable[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], int]:
    """Time (Unix ms) of the first record at or after each place, as far as there is one."""
    times: dict[tuple[TopicPartition, int], int] = {}
    left: dict[TopicPartition, list[int]] = {}
    for partition, place in places:
        left.setdefault(partition, []).append(place)
    while left:
        # One place a partition at a time: groups that are behind in the same partition take turns.
        wanted = {partition: waiting.pop() for partition, waiting in left.items()}
        left = {partition: waiting for partition, waiting in left.items() if waiting}
        consumer.assign(list(wanted))
        for partition, place in wanted.items():
            consumer.seek(partition, place)
        deadline = time.monotonic() + _PEEK_S
        while wanted and time.monotonic() < deadline:
            batches = await consumer.getmany(*wanted, timeout_ms=200, max_records=len(wanted))
            for partition, records in batches.items():
                times[partition, wanted.pop(partition)] = records[0].timestamp
    return times
