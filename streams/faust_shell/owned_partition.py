"""A partition whose state, outputs and progress are written in one transaction, by the only process that may.

    input offset 41..60 ──fold──▶ state topic: 3 keys ─┐
                                  outputs: 5 records ──┼─ one transaction
                                  committed offset 61 ─┘

Its producer has a transactional id that never changes. Starting it fences whoever had the partition before: an open
transaction is aborted, and every later one of a suspended process that wakes up is refused. Only then are the committed
offset and the state read, so they belong together and cannot become older than somebody's later write.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.log import create_topics, open_consumer, open_producer, partitions_of, send
from headrace.schemas.topics import Topic
from headrace.streams.raw import Outgoing

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""How long the broker holds back readers for a process that died and that nobody succeeds."""


class OwnerChanged(RuntimeError):
    """Another process has the partition now; what this one wanted to write was refused."""


class StateTopic(Topic):
    """A topic whose latest record of a key counts: the state of a processor, and nobody else's reading."""

    @property
    def configs(self) -> dict[str, str]:
        """Topic-level settings as Kafka names them."""
        return {"cleanup.policy": "compact", "max.message.bytes": str(self.max_bytes)}


@dataclass(frozen=True, slots=True)
class Ownership:
    """What of a processor its partitions must know."""

    bootstrap: str
    """Kafka, ``host:port``; several by comma."""
    group: str
    """Consumer group whose offsets are committed."""
    sources: tuple[Topic, ...]
    """The inputs; partition p of all of them has one owner."""
    state: Topic
    """Where the state stands. Partition p holds that of partition p of ``sources``."""


class OwnedPartition:
    """One partition of the inputs, from the fence on."""

    def __init__(self, ownership: Ownership, partition: int) -> None:
        self.state: dict[bytes, bytes] = {}
        """The state as it was found, by key in the order of the last writes."""
        self.offsets: dict[str, int] = {}
        """First offset that is not settled, by topic; none before the first."""
        self._ownership = ownership
        self._partition = partition
        self._state = TopicPartition(ownership.state.name, partition)
        self._open = AsyncExitStack()
        self._lost: OwnerChanged | None = None
        self._producer: AIOKafkaProducer

    @classmethod
    async def take(cls, ownership: Ownership, partition: int) -> Self:
        """Fence whoever had the partition; then read its offsets and state. To be closed by :meth:`release`."""
        owned = cls(ownership, partition)
        try:
            await owned._take()
        except BaseException:
            await owned.release()
            raise
        return owned

    async def settle(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """Write ``state`` (``None`` forgets a key) and ``outgoing``, and commit ``offsets``: everything or nothing.

        ``offsets`` are the first that are not settled, by topic; none where only time has passed. Raises
        :class:`OwnerChanged` where another process has taken the partition.
        """
        if self._lost is not None:
            raise self._lost
        try:
            async with self._producer.transaction():
                sent = [
                    await send(self._producer, topic, message, timestamp_ms=time_ms)
                    for topic, message, time_ms in outgoing
                ]
                for key, value in state.items():
                    sent.append(await self._producer.send(self._state.topic, value, key, self._state.partition))
                await asyncio.gather(*sent)
                if offsets:
                    await self._producer.send_offsets_to_transaction(
                        {
                            TopicPartition(topic, self._partition): OffsetAndMetadata(offset, "")
                            for topic, offset in offsets.items()
                        },
                        self._ownership.group,
                    )
        except ProducerFenced as error:
            self._lost = OwnerChanged(
                f"another process of {self._ownership.group!r} has {self._name} now: this one was silent for too long. "
                "Nothing is lost; start it again."
            )
            raise self._lost from error
        self.offsets |= offsets

    async def release(self) -> None:
        """Let go of it. What was settled stays."""
        await self._open.aclose()

    async def _take(self) -> None:
        started = time.monotonic()
        config = self._ownership
        self._producer = await self._open.enter_async_context(
            open_producer(
                config.bootstrap,
                transactional_id=f"{config.group}-{self._partition}",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
        )
        async with open_consumer(config.bootstrap, group=config.group) as reader:
            if self._state not in await partitions_of(reader, config.state):
                raise LookupError(
                    f"{config.state.name} has no partition {self._partition}: it needs as many as "
                    f"{config.sources[0].name}. Add them with kafka-topics --alter."
                )
            sources = [TopicPartition(topic.name, self._partition) for topic in config.sources]
            reader.assign([*sources, self._state])
            committed = {source.topic: await reader.committed(source) for source in sources}
            self.offsets = {topic: offset for topic, offset in committed.items() if offset is not None}
            reader.assign([self._state])
            await reader.seek_to_beginning(self._state)
            end = (await reader.end_offsets([self._state]))[self._state]
            # The position passes transaction markers, which are offsets without a record.
            while await reader.position(self._state) < end:
                for record in (await reader.getmany(self._state, timeout_ms=500)).get(self._state, []):
                    self.state.pop(record.key, None)
                    if record.value is not None:
                        self.state[record.key] = record.value
        logger.info(
            "%s goes on at %s with %d entries of state (%.1f s)",
            self._name, self.offsets, len(self.state), time.monotonic() - started,
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return " and ".join(f"{topic.name}[{self._partition}]" for topic in self._ownership.sources)


async def take_all(ownership: Ownership, partitions: Iterable[int]) -> dict[int, OwnedPartition]:
    """Take ``partitions``, side by side; all of them or, where that raises, none."""
    numbers = sorted(partitions)
    taken = await asyncio.gather(
        *[OwnedPartition.take(ownership, number) for number in numbers], return_exceptions=True
    )
    failed = [each for each in taken if isinstance(each, BaseException)]
    if failed:
        await release_all(each for each in taken if isinstance(each, OwnedPartition))
        raise failed[0]
    return {number: each for number, each in zip(numbers, taken, strict=True) if isinstance(each, OwnedPartition)}


async def release_all(partitions: Iterable[OwnedPartition]) -> None:
    """Let go of ``partitions``, side by side."""
    await asyncio.gather(*[each.release() for each in partitions])


async def create_state_topic(bootstrap: str, name: str, *, partitions: int, about: str) -> Topic:
    """The topic ``name``, created where it is missing."""
    topic = StateTopic(name, "kind and ids", (), partitions, about)
    await create_topics(bootstrap, [topic])
    return topic
