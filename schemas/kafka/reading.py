"""Reading the committed records of a topic up to its end as of now."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaTimeoutError

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.transactions import until_decided
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import Topic

KafkaRecord: TypeAlias = "ConsumerRecord[bytes | None, bytes | None]"
"""A record as the client gives it: undecoded key and value, headers, topic, partition, offset, timestamp (ms)."""

AT_ONCE = 1_000
"""Records that are decoded at a time: some 3 MB of events. What else was fetched waits as it came, compressed."""

STALLED_S = 60.0
"""A reader that knows of further records, and gets none for so many seconds, takes the broker for away."""


async def partitions_of(consumer: AIOKafkaConsumer, topic: Topic) -> list[TopicPartition]:
    """The topic's partitions, ascending; raises ``LookupError`` where the broker has no such topic."""
    for _ in range(50):
        numbers = consumer.partitions_for_topic(topic.name)
        if numbers:
            return [TopicPartition(topic.name, number) for number in sorted(numbers)]
        await consumer._client.force_metadata_update()
        await consumer.topics()
        await asyncio.sleep(0.1)
    raise TopicsError(f"the broker has no topic {topic.name!r}: `headrace up` or `headrace topics --create` makes it")


async def read_to_end(
    bootstrap: str, topic: Topic, *, start: Mapping[int, int] | None = None, decided: bool = False
) -> AsyncIterator[KafkaRecord]:
    """Every committed record of ``topic`` from ``start`` (partition → offset; default all) to the end as of now.

    That end is before the first open transaction; or, where all of it is to be ``decided``, behind: see
    :func:`until_decided`.
    """
    async with open_consumer(bootstrap) as consumer:
        places = await partitions_of(consumer, topic)
        if decided:
            await until_decided(bootstrap, places)
        async for record in scan(consumer, places, start=start):
            yield record


async def scan(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], *, start: Mapping[int, int] | None = None
) -> AsyncGenerator[KafkaRecord]:
    """Every committed record of ``places``, partitions of one topic, from ``start`` to the end as of now.

    ``start``: partition → offset; default the beginning. ``consumer`` has no subscription, and is left assigned.
    Raises ``KafkaTimeoutError`` where the broker gives no record for :data:`STALLED_S` before that end.
    """
    ends = await consumer.end_offsets(places)
    begins = await consumer.beginning_offsets(places)
    # Assigned and told where to begin in one go: in between the client would begin to fetch the whole topic.
    consumer.assign(places)
    for place in places:
        wanted = (start or {}).get(place.partition, begins[place])
        consumer.seek(place, max(wanted, begins[place]))
    stall = Stall()
    left = [place for place in places if await consumer.position(place) < ends[place]]
    while left:
        batches = await consumer.getmany(*left, timeout_ms=500, max_records=AT_ONCE)
        for place, records in batches.items():
            for record in records:
                if record.offset < ends[place]:
                    yield record
        # The position passes transaction markers, which are offsets without a record.
        positions = {place: await consumer.position(place) for place in left}
        stall.moved_to(positions)
        left = [place for place in left if positions[place] < ends[place]]


class Stall:
    """Notices a reader that should get on and does not: the client itself waits for ever, and says nothing."""

    def __init__(self, after_s: float = STALLED_S) -> None:
        """``after_s``: how long a reader may stand still."""
        self._after_s = after_s
        self._at: object = None
        self._since = 0.0

    def moved_to(self, at: object) -> None:
        """The reader stands ``at``; raises ``KafkaTimeoutError`` where it has been there for too long."""
        now = asyncio.get_running_loop().time()
        if at != self._at:
            self._at, self._since = at, now
        elif now - self._since > self._after_s:
            raise KafkaTimeoutError(f"the broker gave no record for {self._after_s:g} s where there are some ({at})")
