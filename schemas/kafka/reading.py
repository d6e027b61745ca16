"""Reads the committed records of a topic up to the end of the log at the time of the call."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from typing import TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.expired import Expired, expired_range
from headrace.schemas.kafka.transactions import until_decided
from headrace.schemas.operator_error import OperatorError, TopicsError
from headrace.schemas.topics import Topic

KafkaRecord: TypeAlias = "ConsumerRecord[bytes | None, bytes | None]"
"""A record as returned by the client: undecoded key and value, headers, topic, partition, offset, timestamp (ms)."""

AT_ONCE = 1_000
"""Records that are decoded at a time: about 3 MB of events. Other fetched records stay compressed."""

STALLED_S = 60.0
"""A reader that gets none of the remaining records for this many seconds considers the broker unavailable."""


class RangeExpired(OperatorError, LookupError):
    """Retention deleted records of a range before they were read."""

    def __init__(self, place: TopicPartition, offset: int) -> None:
        """The log of ``place`` no longer has ``offset``."""
        super().__init__(
            f"{place.topic}[{place.partition}] no longer has offset {offset}: retention deleted it before it was read; "
            "run this again (a replay with a later --from), or set a longer retention.ms"
        )


async def partitions_of(consumer: AIOKafkaConsumer, topic: Topic) -> list[TopicPartition]:
    """Return the topic's partitions, ascending; raise ``LookupError`` if the broker has no such topic."""
    for _ in range(50):
        numbers = consumer.partitions_for_topic(topic.name)
        if numbers:
            return [TopicPartition(topic.name, number) for number in sorted(numbers)]
        await consumer._client.force_metadata_update()
        await consumer.topics()
        await asyncio.sleep(0.1)
    raise TopicsError(
        f"the broker has no topic {topic.name!r}: create it with `headrace up` or `headrace topics --create`"
    )


async def read_to_end(
    bootstrap: str,
    topic: Topic,
    *,
    start: Mapping[int, int] | None = None,
    decided: bool = False,
    whole: bool = False,
    on_expired: Expired | None = None,
) -> AsyncIterator[KafkaRecord]:
    """Yield every committed record of ``topic`` from ``start`` (offset by partition; default: the start of the log) to
    the end of the log at the time of the call.

    By default reading ends before the first open transaction. With ``decided`` it first waits until the open
    transactions have ended (:func:`until_decided`). Records that retention deletes before they are read are left out,
    and ``on_expired`` is called (default: they are counted and logged); with ``whole`` it raises :class:`RangeExpired`
    instead.
    """
    reset = "none" if whole else "earliest"
    async with open_consumer(bootstrap, auto_offset_reset=reset, on_expired=on_expired) as consumer:
        places = await partitions_of(consumer, topic)
        if decided:
            await until_decided(bootstrap, places)
        async for record in scan(consumer, places, start=start, whole=whole):
            yield record


async def scan(
    consumer: ReportingConsumer,
    places: Sequence[TopicPartition],
    *,
    start: Mapping[int, int] | None = None,
    whole: bool = False,
    stop: Mapping[int, int] | None = None,
) -> AsyncGenerator[KafkaRecord]:
    """Yield every committed record of ``places``, partitions of one topic, from ``start`` to the end of the log at the
    time of the call.

    ``start``: offset by partition; default: the start of the log. ``stop``: the same, for an earlier end.
    ``consumer`` has no subscription and stays assigned to ``places``. Raises ``KafkaTimeoutError`` if the broker
    returns no record for :data:`STALLED_S` before that end. ``whole``: as in :func:`read_to_end`, if ``consumer`` does
    not reset offsets.
    """
    ends = await consumer.end_offsets(places)
    for place in places:
        ends[place] = min(ends[place], (stop or {}).get(place.partition, ends[place]))
    firsts = await first_offsets(consumer, places, start=start, whole=whole)
    # No await between assign and seek: otherwise the client would start to fetch the whole topic.
    consumer.assign(places)
    for place in places:
        consumer.seek(place, firsts[place])
    stall = Stall()
    left = [place for place in places if await consumer.position(place) < ends[place]]
    while left:
        batches = await next_records(consumer, left, AT_ONCE)
        for place, records in batches.items():
            for record in records:
                if record.offset < ends[place]:
                    yield record
        # The position advances past transaction markers, which are offsets without a record.
        positions = {place: await consumer.position(place) for place in left}
        stall.moved_to(positions)
        left = [place for place in left if positions[place] < ends[place]]


async def first_offsets(
    consumer: ReportingConsumer,
    places: Sequence[TopicPartition],
    *,
    start: Mapping[int, int] | None = None,
    whole: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset from which to read each of ``places``: that of ``start``, by partition, or else the start of
    the log, which is also where reading continues if records have expired. These are reported to ``consumer``, or raise
    :class:`RangeExpired` with ``whole``.
    """
    begins, firsts = await consumer.beginning_offsets(places), dict[TopicPartition, int]()
    for place in places:
        wanted = (start or {}).get(place.partition, begins[place])
        if (expired := expired_range(place, wanted, begins[place])) is not None:
            if whole:
                raise RangeExpired(place, wanted)
            consumer.on_expired(expired)
        firsts[place] = max(wanted, begins[place])
    return firsts


async def next_records(
    consumer: AIOKafkaConsumer, places: Collection[TopicPartition], most: int
) -> dict[TopicPartition, list[KafkaRecord]]:
    """Return the next records of ``places``, at most ``most``, or none if there are none for half a second.

    Raises :class:`RangeExpired` if retention has deleted them and ``consumer`` does not reset offsets.
    """
    try:
        found: dict[TopicPartition, list[KafkaRecord]] = await consumer.getmany(
            *places, timeout_ms=500, max_records=most
        )
    except OffsetOutOfRangeError as error:
        raise RangeExpired(*next(iter(error.args[0].items()))) from error
    return found


class Stall:
    """Detects a reader that makes no progress: the client itself would wait for ever and report nothing."""

    def __init__(self, after_s: float = STALLED_S) -> None:
        """``after_s``: how long a reader may make no progress."""
        self._after_s = after_s
        self._at: object = None
        self._since = 0.0

    def moved_to(self, at: object) -> None:
        """Record that the reader's position is ``at``; raise ``KafkaTimeoutError`` if it has not changed for too
        long."""
        now = asyncio.get_running_loop().time()
        if at != self._at:
            self._at, self._since = at, now
        elif now - self._since > self._after_s:
            raise KafkaTimeoutError(f"the broker returned none of the remaining records for {self._after_s:g} s ({at})")
