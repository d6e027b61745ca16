"""Side topics on Kafka: written once, in order, each partition with the hash of what it holds.

A replay that was interrupted is run again under its name: what is there already is not sent again, and must be what
would have been sent. Where it is not, the replay ends: two replays never mix in one topic.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
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
"""Records that are held until what an interrupted run wrote is seen to be the same, and their size. What that run had
sent, the broker had up to so many unacknowledged records: more are only held where this run writes something else."""


class ReplayRefused(RuntimeError):
    """The replay cannot be written; the message says why and what to do."""


@dataclass(slots=True)
class _Partition:
    """What was written to one partition so far."""

    topic: str
    """Name of its side topic."""
    number: int
    there: int = 0
    """Records that an earlier, interrupted run left."""
    digest_there: str = ""
    """Their hash."""
    records: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


class ReplaySink:
    """Writes the side topics of one replay."""

    def __init__(self, delivery: Delivery, name: str, partitions: Mapping[Topic, int], references: bytes) -> None:
        """``partitions``: live topics whose side topics are written, with how many partitions they have;
        ``references``: ``LIVE`` or ``SIDE``.
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
        self._unseen = 0  # partitions in which an earlier run left records that are not seen to be the same yet

    async def prepare(self, bootstrap: str) -> None:
        """Make the topics, or look at what an interrupted run left in them.

        Raises :class:`ReplayRefused` where the replay is done already.
        """
        manifest = side_topic(MANIFEST, self._name)
        created = await create_topics(bootstrap, [*self._topics.values(), manifest])
        # A topic that was just created has nothing to read.
        if manifest.name not in created:
            async for _ in read_to_end(bootstrap, manifest):
                raise ReplayRefused(
                    f"replay {self._name!r} is done: choose another name, or `headrace replay {self._name} --delete`"
                )
        for topic, side in self._topics.items():
            if side.name not in created:
                await self._look_at(bootstrap, topic, side)

    async def _look_at(self, bootstrap: str, topic: Topic, side: Topic) -> None:
        digests: dict[int, Any] = defaultdict(hashlib.sha256)
        async for record in read_to_end(bootstrap, side):
            state = self._partitions.get((topic.name, record.partition))
            if state is None:
                raise self._mixed(side.name, record.partition)
            state.there += 1
            _hash(digests[record.partition], record.key, record.value, record.headers, record.timestamp)
        for number, digest in digests.items():
            self._partitions[topic.name, number].digest_there = digest.hexdigest()
            self._unseen += 1

    async def write(self, placed: Iterable[Placed]) -> None:
        """Send records to their partitions, or see that they are there.

        Raises :class:`ReplayRefused` where something else is.
        """
        for (topic, message, timestamp_ms), number in placed:
            timestamp_ms = max(1, timestamp_ms)  # a record without a usable time has 0, which clients take for now
            state = self._partitions[topic.name, number]
            headers = [*message.headers, self._header]
            size = _hash(state.digest, message.key, message.value, headers, timestamp_ms)
            state.records += 1
            if state.records > state.there:
                self._held.append(
                    OutgoingRecord(state.topic, message.key, message.value, headers, timestamp_ms, number)
                )
                self._held_bytes += size
            elif state.records == state.there:
                if state.digest.hexdigest() != state.digest_there:
                    raise self._mixed(state.topic, number)
                self._unseen -= 1
            if self._unseen and (len(self._held) > _HELD or self._held_bytes > _HELD_BYTES):
                raise self._mixed(state.topic, number)
        # Nothing is added before everything that is there has been seen to be the same.
        if not self._unseen:
            held, self._held, self._held_bytes = self._held, [], 0
            await self._delivery.send(held)

    async def finish(self, bootstrap: str) -> list[Written]:
        """Wait until the broker has everything; what each partition holds.

        Raises :class:`ReplayRefused` where that is not what was written.
        """
        for state in self._partitions.values():
            if state.records < state.there:
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
        """Write the manifest: from now on the replay is done."""
        outgoing = Outgoing(side_topic(MANIFEST, self._name), manifest_message(finished), max(1, finished.end_ms))
        await self._delivery.send([to_send(outgoing, partition=0)])
        await self._delivery.flush()

    def _mixed(self, side: str, partition: int) -> ReplayRefused:
        return ReplayRefused(
            f"{side}[{partition}] holds other records than this replay writes: its range, its "
            f"settings or the log changed. Choose another name, or `headrace replay {self._name} --delete`"
        )


def manifest_message(finished: ReplayFinished) -> Message:
    """The manifest as a record."""
    return record_message(
        finished,
        id=derived_id(ReplayFinished.TYPE, finished.name, finished.sha256),
        key=finished.name,
        source=SOURCE,
        time_ms=finished.end_ms,
        subject=finished.name,
    )


def sha256_of(written: Iterable[Written]) -> str:
    """One hash over what all partitions hold."""
    lines = [f"{entry.topic} {entry.partition} {entry.records} {entry.sha256}\n" for entry in written]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _hash(
    digest: Any,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int,
) -> int:
    """Take a record into ``digest``; lengths stand before contents, so that nothing can move between fields.

    Returns the number of bytes that were hashed.
    """
    frame = [_framed(key), _framed(value)]
    for name, content in headers:
        frame += (_framed_name(name), _framed(content))
    data = b"%d %d\n%b" % (timestamp_ms, len(frame), b"\n".join(frame))
    digest.update(data)
    return len(data)


def _framed(part: bytes | None) -> bytes:
    return b"-" if part is None else b"%d:\n%b" % (len(part), part)


@lru_cache(maxsize=256)
def _framed_name(name: str) -> bytes:
    return _framed(name.encode())
