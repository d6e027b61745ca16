"""Whether anything is still on its way to ``rewards`` from a partition of ``events``: asked of the broker.

    events[p] ──assembled to its end?──▶ trajectories[p] ──scored to its end?──▶ rewards

A partition from which nothing is on its way holds no group's time back, however long it has been silent. The ends are
looked up before the offsets behind them, so what is written meanwhile is never taken for done. Each answer is proof
that the broker could be written to: time in which it does not answer does not count.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import EVENTS, REWARDS, TRAJECTORIES
from headrace.streams.lag import place_of

ASSEMBLE_GROUP = "assemble"
SCORE_GROUP = "headrace-score"

_PEEK_S = 2.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """What was found."""

    drained: frozenset[int]
    """Partitions from which nothing was on its way when the looking began."""
    ends: Mapping[int, int]
    """End of each partition of ``rewards`` then: once it is read so far, this is known of it."""


async def look_upstream(bootstrap: str) -> Upstream:
    """What is on its way now; raises aiokafka's errors where the broker does not answer."""
    async with open_consumer(bootstrap) as consumer:
        # Before anything is assigned: from then on the client asks for nothing else's partitions.
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
    """Partitions among ``places`` in which ``group`` has taken every record; ``unknown``: also those it never had."""
    begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    commits: Mapping[TopicPartition, OffsetAndMetadata] = await committed_offsets(bootstrap, group, places)
    done = set()
    for place in places:
        at = place_of(commits[place])
        if (at < 0 and unknown) or await _is_empty(consumer, place, max(at, begins[place]), ends[place]):
            done.add(place.partition)
    return done


async def _is_empty(consumer: AIOKafkaConsumer, place: TopicPartition, begin: int, end: int) -> bool:
    """Whether there is no record from ``begin`` until ``end``: markers and what was aborted are none."""
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
