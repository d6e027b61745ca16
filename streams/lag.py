"""Measures the lag of every consumer group in records and seconds. Lag is a gauge, so a missed sample loses nothing.

    group     topic         partition   records   seconds   position
    assemble  events        2              1840      0.31      52210     1,840 offsets behind, the next is 0.31 s old

A group's position is its committed offset. The assembler's position is in the commit's metadata, because its committed
offset is the first event of its oldest open trajectory.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_admin, open_consumer
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.topics import TOPICS
from headrace.streams.assembly.recovery import parse_commit_metadata

log = logging.getLogger(__name__)

OTHERS_PER_PASS = 64
"""Most groups without offsets in headrace's topics that one measurement queries again, in rotation: a shared broker may
have thousands."""

_CONCURRENT_QUERIES = 16
"""Groups whose offsets are queried concurrently."""

_PEEK_S = 1.0
"""Seconds to wait for the next records of groups that are behind."""

_PEEK_BYTES = 64 * 1024
"""Bytes to fetch of a partition to read one timestamp; Kafka returns at least one record, however large."""


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The distance of one group from the end of one partition."""

    group: str
    """Consumer group."""
    topic: str
    """Topic."""
    partition: int
    """Partition."""
    records: int
    """Offsets between the group's position and the log end offset, including transaction markers; 0 if only markers
    and aborted records are left."""
    seconds: float
    """Age of the next record that the group has not processed; 0 if there is none. While the broker is too slow to tell
    it, that of a record that was next before, or 0 if it never told one."""
    position: int = 0
    """Next offset that the group processes. It tells a group that stands still from one that gets more than it can
    process: the lag of both grows."""


def committed_position(commit: OffsetAndMetadata) -> int:
    """Returns the next offset to process of the group that made ``commit``; −1 if it has committed nothing."""
    checkpoint = parse_commit_metadata(commit.metadata or "")
    return max(checkpoint.next, commit.offset) if checkpoint else int(commit.offset)


def lags(
    places: Mapping[str, Mapping[TopicPartition, int]],
    ends: Mapping[TopicPartition, int],
    next_ms: Mapping[tuple[TopicPartition, int], int],
    now_ms: int,
    without_records: Collection[tuple[TopicPartition, int]] = (),
) -> list[ConsumerLag]:
    """Returns the lag of every group in each partition. ``next_ms``: time of the record at each position;
    ``without_records``: positions with nothing to read up to the end, only markers of transactions.
    """
    return [
        ConsumerLag(
            group,
            partition.topic,
            partition.partition,
            0 if (partition, place) in without_records else max(ends[partition] - place, 0),
            max(now_ms - next_ms.get((partition, place), now_ms), 0) / 1000,
            place,
        )
        for group, found in sorted(places.items())
        for partition, place in sorted(found.items())
        if partition in ends and place >= 0
    ]


class GroupRotation:
    """Selects the groups to query: headrace's and new groups every time, other groups in rotation."""

    def __init__(self) -> None:
        self._others: dict[str, None] = {}

    def due(self, names: Iterable[str]) -> list[str]:
        """Returns the groups to query now, of ``names``, which are all groups of the broker."""
        known = set(names)
        self._others = {name: None for name in self._others if name in known}
        again = list(self._others)[:OTHERS_PER_PASS]
        return sorted((known - self._others.keys()) | set(again))

    def note(self, name: str, ours: bool) -> None:
        """Note whether ``name`` has offsets in headrace's topics (``ours``)."""
        self._others.pop(name, None)
        if not ours:
            self._others[name] = None  # to the end of the rotation


class NextTimes:
    """The newest known time of the next record of each group that is behind in a partition. A broker that is too slow
    to tell another one must not make the group look as if it were not behind."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, TopicPartition], int] = {}

    def completed(
        self, behind: Mapping[str, Iterable[tuple[TopicPartition, int]]], read: Mapping[tuple[TopicPartition, int], int]
    ) -> dict[tuple[TopicPartition, int], int]:
        """Returns ``read``, the time (Unix ms) of the record at each position that the broker has told, with the newest
        known one for each other position of the groups that are ``behind``, if there is one.
        """
        times, known = dict(read), dict[tuple[str, TopicPartition], int]()
        for group, places in behind.items():
            for partition, place in places:
                time_ms = read.get((partition, place), self._known.get((group, partition)))
                if time_ms is not None:
                    known[group, partition] = time_ms
                    times[partition, place] = max(time_ms, times.get((partition, place), time_ms))
        self._known = known
        return times


class LagMeter:
    """Measures lag on one broker; :meth:`run` opens the connection."""

    def __init__(self, bootstrap: str, *, groups: Iterable[str] | None = None) -> None:
        """``groups`` to measure; unset: every group with committed offsets of headrace's topics."""
        self.latest: list[ConsumerLag] = []
        """The latest measurement."""
        self._bootstrap = bootstrap
        self._groups = None if groups is None else sorted(groups)

    async def run(
        self,
        *,
        interval_s: float,
        stop: asyncio.Event,
        write: Callable[[list[ConsumerLag], int], Awaitable[None]] | None = None,
    ) -> None:
        """Measure every ``interval_s`` seconds until ``stop``, and pass lags and time (Unix ms) to ``write``.

        A failed measurement is logged and skipped.
        """
        known, times = GroupRotation(), NextTimes()
        async with _clients(self._bootstrap) as (admin, consumer):
            while not stop.is_set():
                try:
                    now_ms = _now_ms()
                    self.latest = await _measure(admin, consumer, self._groups, now_ms, known, times)
                    if write is not None and self.latest:
                        await write(self.latest, now_ms)
                except (KafkaError, OSError) as error:
                    log.warning("the lag was not measured: %s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await stop.wait()


async def measure_lag(bootstrap: str, groups: Iterable[str] | None = None) -> list[ConsumerLag]:
    """Returns the current lag of ``groups``, or of every group with committed offsets of headrace's topics."""
    async with _clients(bootstrap) as (admin, consumer):
        named = None if groups is None else sorted(groups)
        return await _measure(admin, consumer, named, _now_ms(), GroupRotation(), NextTimes())


@asynccontextmanager
async def _clients(bootstrap: str) -> AsyncIterator[tuple[AIOKafkaAdminClient, AIOKafkaConsumer]]:
    async with (
        open_admin(bootstrap) as admin,
        open_consumer(bootstrap, max_partition_fetch_bytes=_PEEK_BYTES, on_expired=skip_expired) as consumer,
    ):
        yield admin, consumer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _measure(
    admin: AIOKafkaAdminClient,
    consumer: AIOKafkaConsumer,
    groups: list[str] | None,
    now_ms: int,
    known: GroupRotation,
    times: NextTimes,
) -> list[ConsumerLag]:
    names = {topic.name for topic in TOPICS}
    if groups is None:
        groups = known.due(group for group, *_ in await admin.list_consumer_groups())
    places: dict[str, dict[TopicPartition, int]] = {}
    for at in range(0, len(groups), _CONCURRENT_QUERIES):
        asked = groups[at : at + _CONCURRENT_QUERIES]
        answers = await asyncio.gather(*map(admin.list_consumer_group_offsets, asked))
        for group, commits in zip(asked, answers, strict=True):
            ours = {
                partition: committed_position(commit)
                for partition, commit in commits.items()
                if partition.topic in names
            }
            known.note(group, bool(ours))
            if ours:
                places[group] = ours
    partitions = {partition for ours in places.values() for partition in ours}
    # End offsets are read after commits, otherwise a group could appear to be ahead of the log end.
    ends = await consumer.end_offsets(list(partitions)) if partitions else {}
    behind = {
        group: {(partition, place) for partition, place in ours.items() if 0 <= place < ends.get(partition, 0)}
        for group, ours in places.items()
    }
    read, without_records = await _times(consumer, set().union(*behind.values()), ends)
    behind = {group: ours - without_records for group, ours in behind.items()}
    return lags(places, ends, times.completed(behind, read), now_ms, without_records)


def measure_in_thread(bootstrap: str, groups: Iterable[str], *, interval_s: float = 5.0) -> LagMeter:
    """Start a meter in a separate thread until the process ends, for processes that do not own their event loop."""
    meter = LagMeter(bootstrap, groups=groups)

    def measure() -> None:
        try:
            asyncio.run(meter.run(interval_s=interval_s, stop=asyncio.Event()))
        except KafkaError as error:
            log.warning("the lag is not measured: %s", error)

    threading.Thread(target=measure, name="lag", daemon=True).start()
    return meter


async def _times(
    consumer: AIOKafkaConsumer, places: Iterable[tuple[TopicPartition, int]], ends: Mapping[TopicPartition, int]
) -> tuple[dict[tuple[TopicPartition, int], int], set[tuple[TopicPartition, int]]]:
    """Returns the time (Unix ms) of the first record at or after each position, and the positions that no record
    follows up to ``ends``.
    """
    without_records: set[tuple[TopicPartition, int]] = set()
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
            for partition in list(wanted):
                # The position passes markers of transactions and aborted records, which are not returned.
                if await consumer.position(partition) >= ends[partition]:
                    without_records.add((partition, wanted.pop(partition)))
    return times, without_records
