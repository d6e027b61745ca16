"""Checks with the broker whether records of a partition of ``events`` are still in flight to ``rewards``.

    events[p] ──assembled to its end?──▶ trajectories[p] ──scored to its end?──▶ rewards

A partition without records in flight does not hold back any group's time, however long it has been silent. End offsets
are read before committed offsets, so records written in between never count as processed. Each answer also shows that
the broker was available for producers; time during which it does not answer does not count.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import EVENTS, REWARDS, TRAJECTORIES
from headrace.streams.lag import committed_position

ASSEMBLE_GROUP = "assemble"
SCORE_GROUP = "headrace-score"

_PEEK_S = 2.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """Progress of the processors upstream of ``rewards``."""

    drained: frozenset[int]
    """Partitions without records in flight when the check began."""
    ends: Mapping[int, int]
    """End offset of each partition of ``rewards`` at that time; the result applies once the partition is read so far.
    """


async def read_upstream(bootstrap: str) -> Upstream:
    """Check what is in flight now. Raises aiokafka's errors if the broker does not answer."""
    async with open_consumer(bootstrap, on_expired=skip_expired) as consumer:
        # Must come before any assignment: afterwards the client fetches metadata of assigned topics only.
        events, trajectories, rewards = [
            await partitions_of(consumer, topic) for topic in (EVENTS, TRAJECTORIES, REWARDS)
        ]
        assembled = await _done(bootstrap, consumer, events, ASSEMBLE_GROUP, unknown=True)
        scored = await _done(bootstrap, consumer, trajectories, SCORE_GROUP, unknown=False)
        ends = await consumer.end_offsets(rewards)
    return Upstream(frozenset(assembled & scored), {place.partition: end for place, end in ends.items()})


async def _done(
    bootstrap: str, consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], group: str, *, unknown: bool
) -> set[int]:
    """Returns the partitions of ``places`` in which ``group`` has processed every record; with ``unknown``, also those
    for which it has no committed offset.
    """
    begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    commits: Mapping[TopicPartition, OffsetAndMetadata] = await committed_offsets(bootstrap, group, places)
    done = set()
    for place in places:
        at = committed_position(commits[place])
        if (at < 0 and unknown) or await _is_empty(consumer, place, max(at, begins[place]), ends[place]):
            done.add(place.partition)
    return done


async def _is_empty(consumer: AIOKafkaConsumer, place: TopicPartition, begin: int, end: int) -> bool:
    """Whether ``[begin, end)`` holds no record; transaction markers and aborted records do not count."""
    if begin >= end:
        return True
    consumer.assign([place])
    consumer.seek(place, begin)
    deadline = time.monotonic() + _PEEK_S
    while time.monotonic() < deadline:
        found = await consumer.getmany(place, timeout_ms=200, max_records=1)
        if any(record.offset < end for records in found.values() for record in records):
            return False
        if found or await consumer.position(place) >= end:
            return True
    return False
