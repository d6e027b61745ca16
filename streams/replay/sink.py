"""Side topics on Kafka: written once, in order, each partition with the hash of its contents.

An interrupted replay is run again under its name. Existing records are compared, not sent again; if one differs, the
replay is refused, so that two replays never mix in one topic.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.sending import OutgoingRecord
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.side_topics import MANIFEST, REFERENCES, ReplayFinished, Written, side_topic
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message, record_message
from headrace.streams.raw import Outgoing, to_send
from headrace.streams.replay.delivery import UNACKNOWLEDGED, UNACKNOWLEDGED_KB, Delivery
from headrace.streams.replay.placed import Placed

SOURCE = "/streams/replay"

_HELD, _HELD_BYTES = 2 * UNACKNOWLEDGED, 2 * UNACKNOWLEDGED_KB * 1024
"""Largest number and size of new records that are held until the existing ones were compared. Of the records before an
existing one, an interrupted run lacks at most ``UNACKNOWLEDGED``: if more are missing, this run differs from it."""


class ReplayRefused(RuntimeError):
    """The replay cannot be written; the message gives the reason and the remedy."""


@dataclass(slots=True)
class _Partition:
    """Contents of one partition so far."""

    topic: str
    """Name of its side topic."""
    number: int
    existing: int = 0
    """Number of existing records, of an interrupted run."""
    existing_digest: str = ""
    """Their hash."""
    records: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


class ReplaySink:
    """Writes the side topics of one replay."""

    def __init__(self, delivery: Delivery, name: str, partitions: Mapping[Topic, int], references: bytes) -> None:
        """``partitions``: number of partitions of each live topic whose side topic is written; ``references``:
        ``LIVE`` or ``SIDE``.
        """
        self._delivery = delivery
        self._name = name
        self._topics = {topic: side_topic(topic, name, count) for topic, count in partitions.items()}
        self._header = (REFERENCES, references)
        self._partitions = {
            (topic.name, number): _Partition(self._topics[topic].name, number)
            for topic, count in partitions.items()
            for number in range(count)
        }
        self._held: list[OutgoingRecord] = []
        self._held_bytes = 0
        self._uncompared = 0  # partitions with existing records that were not compared yet

    async def prepare(self, bootstrap: str) -> None:
        """Create the topics, or read the records of an interrupted run in them.

        Raises :class:`ReplayRefused` if the replay is already complete.
        """
        manifest = side_topic(MANIFEST, self._name)
        created = await create_topics(bootstrap, [*self._topics.values(), manifest])
        # A topic that was just created has nothing to read.
        if manifest.name not in created:
            async for _ in read_to_end(bootstrap, manifest):
                raise ReplayRefused(
                    f"replay {self._name!r} is complete: choose another name or `headrace replay {self._name} --delete`"
                )
        for topic, side in self._topics.items():
            if side.name not in created:
                await self._read_existing(bootstrap, topic, side)

    async def _read_existing(self, bootstrap: str, topic: Topic, side: Topic) -> None:
        digests: dict[int, Any] = defaultdict(hashlib.sha256)
        async for record in read_to_end(bootstrap, side):
            state = self._partitions.get((topic.name, record.partition))
            if state is None:
                raise self._mixed(side.name, record.partition)
            state.existing += 1
            _hash(digests[record.partition], record.key, record.value, record.headers, record.timestamp)
        for number, digest in digests.items():
            self._partitions[topic.name, number].existing_digest = digest.hexdigest()
            self._uncompared += 1

    async def write(self, placed: Iterable[Placed]) -> None:
        """Send records to their partitions, or compare them with existing ones.

        Raises :class:`ReplayRefused` if an existing record differs.
        """
        for (topic, message, timestamp_ms), number in placed:
            timestamp_ms = max(1, timestamp_ms)  # a record without a usable time has 0, which clients replace by now
            state = self._partitions[topic.name, number]
            headers = [*message.headers, self._header]
            size = _hash(state.digest, message.key, message.value, headers, timestamp_ms)
            state.records += 1
            if state.records > state.existing:
                self._held.append(
                    OutgoingRecord(state.topic, message.key, message.value, headers, timestamp_ms, number)
                )
                self._held_bytes += size
            elif state.records == state.existing:
                if state.digest.hexdigest() != state.existing_digest:
                    raise self._mixed(state.topic, number)
                self._uncompared -= 1
            if self._uncompared and (len(self._held) > _HELD or self._held_bytes > _HELD_BYTES):
                raise self._mixed(state.topic, number)
        # Send only after all existing records were compared.
        if not self._uncompared:
            held, self._held, self._held_bytes = self._held, [], 0
            await self._delivery.send(held)

    async def finish(self, bootstrap: str) -> list[Written]:
        """Wait until the broker has stored all records. Returns the contents of each partition.

        Raises :class:`ReplayRefused` if a partition has another number of records than were written.
        """
        for state in self._partitions.values():
            if state.records < state.existing:
                raise self._mixed(state.topic, state.number)
        await self._delivery.flush()
        async with open_consumer(bootstrap) as consumer:
            for topic, side in self._topics.items():
                ends = await consumer.end_offsets(await partitions_of(consumer, side))
                for place, end in ends.items():
                    if end != self._partitions[topic.name, place.partition].records:
                        raise self._mixed(side.name, place.partition)
        return [
            Written(topic=name, partition=number, records=state.records, sha256=state.digest.hexdigest())
            for (name, number), state in self._partitions.items()
        ]

    async def announce(self, finished: ReplayFinished) -> None:
        """Write the manifest, which completes the replay."""
        outgoing = Outgoing(side_topic(MANIFEST, self._name), manifest_message(finished), max(1, finished.end_ms))
        await self._delivery.send([to_send(outgoing, partition=0)])
        await self._delivery.flush()

    def _mixed(self, side: str, partition: int) -> ReplayRefused:
        return ReplayRefused(
            f"{side}[{partition}] holds other records than this replay writes: its range, its "
            f"settings or the log changed. Choose another name, or `headrace replay {self._name} --delete`"
        )


def manifest_message(finished: ReplayFinished) -> Message:
    """Returns the manifest as a record."""
    return record_message(
        finished,
        id=derived_id(ReplayFinished.TYPE, finished.name, finished.sha256),
        key=finished.name,
        source=SOURCE,
        time_ms=finished.end_ms,
        subject=finished.name,
    )


def sha256_of(written: Iterable[Written]) -> str:
    """Returns one hash over the contents of all partitions."""
    lines = [f"{entry.topic} {entry.partition} {entry.records} {entry.sha256}\n" for entry in written]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _hash(
    digest: Any,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    timestamp_ms: int,
) -> int:
    """Add a record to ``digest``. Lengths precede contents, so that no two records give the same bytes. Returns the
    number of bytes that were hashed.
    """
    frame = [b"%d %d" % (timestamp_ms, 2 + 2 * len(headers))]
    for part in (key, value):
        frame += (b"-",) if part is None else (b"%d:" % len(part), part)
    for name, content in headers:
        frame += (_framed_name(name), b"-" if content is None else b"%d:\n%b" % (len(content), content))
    data = b"\n".join(frame)
    digest.update(data)
    return len(data)


@lru_cache(maxsize=256)
def _framed_name(name: str) -> bytes:
    content = name.encode()
    return b"%d:\n%b" % (len(content), content)
