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
from typing import Any, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced, kafka_errors
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.log import create_topics, open_consumer, open_producer, partitions_of
from headrace.schemas.topics import Topic
from headrace.streams.raw import Outgoing

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""How long the broker holds back readers for a process that died and that nobody succeeds."""

# Brokers since 2.8 answer PRODUCER_FENCED (90) where aiokafka only knows INVALID_PRODUCER_EPOCH (47) as fencing.
kafka_errors.setdefault(90, InvalidProducerEpoch)


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
    source: Topic
    """The input."""
    state: Topic
    """Where the state stands. Partition p holds that of partition p of ``source``."""


class OwnedPartition:
    """One partition of the input, from the fence on."""

    def __init__(self, ownership: Ownership, partition: int) -> None:
        self.state: dict[bytes, bytes] = {}
        """The state as it was found, by key in the order of the last writes."""
        self.offset: int | None = None
        """First input offset that is not settled; ``None`` before the first."""
        self._ownership = ownership
        self._source = TopicPartition(ownership.source.name, partition)
        self._state = TopicPartition(ownership.state.name, partition)
        self._open = AsyncExitStack()
        self._lost: OwnerChanged | None = None
        self._producer: AIOKafkaProducer

    @classmethod
    async def take(cls, ownership: Ownership, partition: int) -> Self:
        """Fence whoever had the partition; then read its offset and state. To be closed by :meth:`release`."""
        owned = cls(ownership, partition)
        try:
            await owned._take()
        except BaseException:
            await owned.release()
            raise
        return owned

    async def settle(
        self, offset: int | None, state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """Write ``state`` (``None`` forgets a key) and ``outgoing``, and commit ``offset``: everything or nothing.

        ``offset`` is the first that is not settled, ``None`` where only time has passed. Raises :class:`OwnerChanged`
        where another process has taken the partition.
        """
        if self._lost is not None:
            raise self._lost
        try:
            async with self._producer.transaction():
                sent = [await self._send(each) for each in outgoing]
                for key, value in state.items():
                    sent.append(await self._producer.send(self._state.topic, value, key, self._state.partition))
                await asyncio.gather(*sent)
                if offset is not None:
                    await self._producer.send_offsets_to_transaction(
                        {self._source: OffsetAndMetadata(offset, "")}, self._ownership.group
                    )
        except ProducerFenced as error:
            self._lost = OwnerChanged(
                f"another process of {self._ownership.group!r} has {self._source.topic}[{self._source.partition}] "
                "now: this one was silent for too long. Nothing is lost; start it again."
            )
            raise self._lost from error
        self.offset = self.offset if offset is None else offset

    async def release(self) -> None:
        """Let go of it. What was settled stays."""
        await self._open.aclose()

    async def _take(self) -> None:
        started = time.monotonic()
        config = self._ownership
        self._producer = await self._open.enter_async_context(
            open_producer(
                config.bootstrap,
                transactional_id=f"{config.group}-{self._source.partition}",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
        )
        async with open_consumer(config.bootstrap, group=config.group) as reader:
            if self._state not in await partitions_of(reader, config.state):
                raise LookupError(
                    f"{config.state.name} has no partition {self._state.partition}: it needs as many as "
                    f"{config.source.name}. Add them with kafka-topics --alter."
                )
            reader.assign([self._source, self._state])
            self.offset = await reader.committed(self._source)
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
            "%s[%d] goes on at %s with %d entries of state (%.1f s)",
            self._source.topic, self._source.partition, self.offset, len(self.state), time.monotonic() - started,
        )  # fmt: skip

    async def _send(self, outgoing: Outgoing) -> Any:
        topic, message, timestamp_ms = outgoing
        return await self._producer.send(
            topic.name,
            key=message.key,
            value=message.value,
            headers=message.headers,
            timestamp_ms=max(0, timestamp_ms),
        )


async def create_state_topic(bootstrap: str, name: str, *, partitions: int, about: str) -> Topic:
    """The topic ``name``, created where it is missing."""
    topic = StateTopic(name, "kind and ids", (), partitions, about)
    await create_topics(bootstrap, [topic])
    return topic
