"""Side topics on Kafka: written once, in order, each partition with the hash of what it holds.

A replay that was interrupted is run again under its name: what is there already is not sent again, and must be what
would have been sent. Where it is not, the replay ends: two replays never mix in one topic.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer

from headrace.schemas.envelope import Headers
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.side_topics import MANIFEST, REFERENCES, ReplayFinished, Written, side_topic
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message, record_message
from headrace.streams.raw import Outgoing

SOURCE = "/streams/replay"

_IN_FLIGHT = 5_000
"""Records sent before their acknowledgements are looked at: an interrupted run lacks no more of its prefix."""


class ReplayRefused(RuntimeError):
    """The replay cannot be written; the message says why and what to do."""


@dataclass(slots=True)
class _Partition:
    """What was written to one partition so far."""

    there: int = 0
    """Records that an earlier, interrupted run left."""
    digest_there: str = ""
    """Their hash."""
    records: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


class ReplaySink:
    """Writes the side topics of one replay."""

    def __init__(
        self, producer: AIOKafkaProducer, name: str, partitions: Mapping[Topic, int], references: bytes
    ) -> None:
        """``partitions``: live topics whose side topics are written, with how many partitions they have;
        ``references``: ``LIVE`` or ``SIDE``.
        """
        self._producer = producer
        self._name = name
        self._topics = {topic: side_topic(topic, name, count) for topic, count in partitions.items()}
        self._header = (REFERENCES, references)
        self._partitions = {
            (topic, number): _Partition() for topic, count in partitions.items() for number in range(count)
        }
        self._held: list[tuple[Topic, int, Message, Headers, int]] = []
        self._sending: list[Any] = []
        self._unseen = 0  # partitions in which an earlier run left records that are not seen to be the same yet

    async def prepare(self, bootstrap: str) -> None:
        """Make the topics, or look at what an interrupted run left in them.

        Raises :class:`ReplayRefused` where the replay is done already.
        """
        manifest = side_topic(MANIFEST, self._name)
        created = await create_topics(bootstrap, [*self._topics.values(), manifest])
        # A topic that was only just made has nothing to read, and no leader to read it from yet.
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
            if (topic, record.partition) not in self._partitions:
                raise self._mixed(topic, record.partition)
            self._partitions[topic, record.partition].there += 1
            _hash(digests[record.partition], record.key, record.value, record.headers, record.timestamp)
        for number, digest in digests.items():
            self._partitions[topic, number].digest_there = digest.hexdigest()
            self._unseen += 1

    async def write(self, outgoing: Outgoing, partition: int) -> None:
        """Send one record to ``partition``, or see that it is there.

        Raises :class:`ReplayRefused` where something else is.
        """
        topic, message, timestamp_ms = outgoing
        state = self._partitions[topic, partition]
        headers = [*message.headers, self._header]
        _hash(state.digest, message.key, message.value, headers, timestamp_ms)
        state.records += 1
        if state.records > state.there:
            self._held.append((topic, partition, message, headers, timestamp_ms))
        elif state.records == state.there:
            if state.digest.hexdigest() != state.digest_there:
                raise self._mixed(topic, partition)
            self._unseen -= 1
        # Nothing is added before everything that is there has been seen to be the same.
        if not self._unseen:
            await self._send()
        elif len(self._held) > 2 * _IN_FLIGHT:
            raise self._mixed(topic, partition)

    async def finish(self, bootstrap: str) -> list[Written]:
        """Wait until the broker has everything; what each partition holds.

        Raises :class:`ReplayRefused` where that is not what was written.
        """
        for (topic, number), state in self._partitions.items():
            if state.records < state.there:
                raise self._mixed(topic, number)
        await self._acknowledged()
        async with open_consumer(bootstrap) as consumer:
            for topic, side in self._topics.items():
                ends = await consumer.end_offsets(await partitions_of(consumer, side))
                for place, end in ends.items():
                    if end != self._partitions[topic, place.partition].records:
                        raise self._mixed(topic, place.partition)
        return [
            Written(topic=topic.name, partition=number, records=state.records, sha256=state.digest.hexdigest())
            for (topic, number), state in self._partitions.items()
        ]

    async def _send(self) -> None:
        held, self._held = self._held, []
        for topic, partition, message, headers, timestamp_ms in held:
            self._sending.append(
                await self._producer.send(
                    self._topics[topic].name,
                    key=message.key,
                    value=message.value,
                    headers=headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                )
            )
        if len(self._sending) >= _IN_FLIGHT:
            await self._acknowledged()

    async def announce(self, finished: ReplayFinished) -> None:
        """Write the manifest: from now on the replay is done."""
        await self._producer.send_and_wait(
            side_topic(MANIFEST, self._name).name, **_record(manifest_message(finished), finished.end_ms)
        )

    async def _acknowledged(self) -> None:
        sending, self._sending = self._sending, []
        await asyncio.gather(*sending)

    def _mixed(self, topic: Topic, partition: int) -> ReplayRefused:
        return ReplayRefused(
            f"{self._topics[topic].name}[{partition}] holds other records than this replay writes: its range, its "
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


def _record(message: Message, timestamp_ms: int) -> dict[str, Any]:
    return {
        "key": message.key,
        "value": message.value,
        "headers": message.headers,
        "timestamp_ms": timestamp_ms,
    }


def _hash(
    digest: Any,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int,
) -> None:
    """Take a record into ``digest``; lengths stand before contents, so that nothing can move between fields."""
    parts = [key, value]
    for name, content in headers:
        parts += [name.encode(), content]
    frame = [b"%d %d" % (timestamp_ms, len(parts))]
    for part in parts:
        frame += [b"-"] if part is None else [b"%d:" % len(part), part]
    digest.update(b"\n".join(frame))
