"""A partition whose state, outputs and progress are written in one transaction, by the only process that may.

    input offset 41..60 ──fold──▶ state topic: 3 keys ─┐
                                  outputs: 5 records ──┼─ one transaction
                                  committed offset 61 ─┘

Its producer has a transactional id that never changes. Starting it fences whoever had the partition before: an open
transaction is aborted, and every later one of a suspended process that wakes up is refused. Only then are the committed
offset and the state read, so they belong together and cannot become older than somebody's later write.

A broker that goes down at the wrong moment may leave a partition without the end of a transaction. So each transaction
writes something into the state, and the commit's metadata says where the state ended: what stands behind that was
not committed. From this the next owner knows how the last transaction ended, and ends it so everywhere.
"""

import asyncio
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from aiokafka import TopicPartition
from aiokafka.errors import ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.fenced_producer import FencedProducer, Transaction, open_fenced_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, scan
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.kafka.transactions import until_decided
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import Topic
from headrace.streams.lost_offset import LostOffsetError, expired_alert
from headrace.streams.raw import Outgoing

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""How long the broker holds back readers for a process that died and that nobody succeeds."""
COMMIT_S = TRANSACTION_TIMEOUT_MS / 1000 + 30
"""After so long the broker has aborted a transaction, and what waits for its end waits for nothing."""

STATE_BYTES = 1024 * 1024
"""Largest record of a state topic. What processors keep is bounded far below: a larger one would fail each commit."""

_COMMITTED = b"\0settled"
"""Key of the record that every transaction writes into the state, if nothing else."""


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
    writes: tuple[Topic, ...]
    """Topics of the outputs."""


class OwnedPartition:
    """One partition of the inputs, from the fence on."""

    def __init__(self, ownership: Ownership, partition: int) -> None:
        self.state: dict[bytes, KafkaRecord] = {}
        """The state as it was found, by key in the order of the last writes: the records of its topic."""
        self.offsets: dict[str, int] = {}
        """First offset that is not committed as processed, by topic; none before the first."""
        self._ownership = ownership
        self._partition = partition
        self._state = TopicPartition(ownership.state.name, partition)
        self._open = AsyncExitStack()
        self._lost: OwnerChanged | None = None
        self._alerts: list[Outgoing] = []
        self._producer: FencedProducer

    @classmethod
    async def acquire(cls, ownership: Ownership, partition: int) -> Self:
        """Fence whoever had the partition; then read its offsets and state. To be closed by :meth:`release`."""
        owned = cls(ownership, partition)
        try:
            await owned._acquire()
        except BaseException:
            await owned.release()
            raise
        return owned

    async def commit(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """Write ``state`` (``None`` forgets a key) and ``outgoing``, and commit ``offsets``: everything or nothing.

        ``offsets`` are the first that were not processed, by topic; none where only time has passed. Raises
        :class:`OwnerChanged` where another process has taken the partition, and aiokafka's errors where the broker does
        not answer: what was written then may be committed or not, which taking the partition again finds out.
        """
        if self._lost is not None:
            raise self._lost
        committed = {**self.offsets, **offsets}
        try:
            await self._producer.transact(
                lambda transaction: self._write(transaction, committed, state, outgoing),
                within_s=COMMIT_S,
                what=f"a transaction of {self._name}",
            )
        except ProducerFenced as error:
            self._lost = self._owner_changed()
            raise self._lost from error
        self.offsets = committed
        self._alerts = []

    async def _write(
        self,
        transaction: Transaction,
        committed: dict[str, int],
        state: Mapping[bytes, bytes | None],
        outgoing: Iterable[Outgoing],
    ) -> None:
        """The transaction of :meth:`commit`, which commits the offsets ``committed``."""
        for topic, message, time_ms in [*self._alerts, *outgoing]:
            await transaction.send(topic, message, timestamp_ms=time_ms)
        for key, value in {**state, _COMMITTED: json.dumps(committed).encode()}.items():
            await transaction.send_state(self._state, key, value)
        # The last one sent is the last of its partition.
        state_end = (await asyncio.gather(*transaction.sent))[-1].offset + 1
        if committed:
            await transaction.commit_offsets(
                {
                    TopicPartition(topic, self._partition): OffsetAndMetadata(offset, str(state_end))
                    for topic, offset in committed.items()
                },
                self._ownership.group,
            )

    async def release(self) -> None:
        """Let go of it. What was committed stays."""
        await self._open.aclose()

    async def _acquire(self) -> None:
        started = time.monotonic()
        config = self._ownership
        self._producer = await self._open.enter_async_context(
            open_fenced_producer(
                config.bootstrap, f"{config.group}-{self._partition}", timeout_ms=TRANSACTION_TIMEOUT_MS
            )
        )
        sources = [TopicPartition(topic.name, self._partition) for topic in config.sources]
        commits = await committed_offsets(config.bootstrap, config.group, sources)
        self.offsets = {source.topic: commit.offset for source, commit in commits.items() if commit.offset >= 0}
        async with open_consumer(config.bootstrap) as reader:
            if self._state not in await partitions_of(reader, config.state):
                raise TopicsError(
                    f"{config.state.name} has no partition {self._partition}: it needs as many as "
                    f"{config.sources[0].name}. Add them with kafka-topics --alter."
                )
            await self._end_last_transaction({commit.metadata for commit in commits.values()})
            async for record in scan(reader, [self._state]):
                self.state.pop(record.key, None)
                if record.value is not None:
                    self.state[record.key] = record
            committed = self.state.pop(_COMMITTED, None)
            said = committed.value if committed is not None else None
            self._go_on(json.loads(said or b"null"), bool(self.state) or committed is not None)
            begins = await reader.beginning_offsets(sources)
        for source in sources:
            at, begin = self.offsets.get(source.topic, 0), begins[source]
            if 0 < at < begin:
                alert = expired_alert(config.group, source.topic, source.partition, at, at, begin)
                logger.error("%s", json.loads(alert.message.value)["message"])
                self._alerts.append(alert)
        logger.info(
            "%s goes on at %s with %d entries of state (%.1f s)",
            self._name, self.offsets, len(self.state), time.monotonic() - started,
        )  # fmt: skip

    def _go_on(self, committed: dict[str, int] | None, has_state: bool) -> None:
        """Where the broker has forgotten committed offsets (``offsets.retention.minutes``), go on where the state was
        committed. Raises :class:`LostOffsetError` where an older version wrote it, which did not say.
        """
        missing = [topic.name for topic in self._ownership.sources if topic.name not in self.offsets]
        if not missing or not has_state:
            return
        if committed is None:
            if self.offsets:  # a source that is read since lately
                return
            commands = " ".join(f"--topic {name}:{self._partition}" for name in missing)
            raise LostOffsetError(
                f"the broker has no committed offset of {self._name} any more (offsets.retention.minutes), and its "
                "state is there. Say from where it goes on, with every process of the group stopped: "
                f"kafka-consumer-groups.sh --bootstrap-server {self._ownership.bootstrap} --group "
                f"{self._ownership.group} {commands} --reset-offsets --to-datetime 2026-01-31T00:00:00.000 --execute "
                "(what it decided since is decided again)"
            )
        for name in missing:
            if name in committed:
                self.offsets[name] = committed[name]
                logger.warning(
                    "the broker has no committed offset of %s[%d] any more: it goes on at %d, as its state says",
                    name, self._partition, committed[name],
                )  # fmt: skip

    async def _end_last_transaction(self, metadata: Collection[str]) -> None:
        """End the last transaction wherever a broker left that out, as its commit says; wait until the state is."""
        config = self._ownership
        ends = [int(text) for text in metadata if text.isdecimal()]
        if not ends:  # nothing was committed yet, or only by a release that did not note where the state ended
            return
        async with open_consumer(config.bootstrap, isolation_level="read_uncommitted") as reader:
            behind = scan(reader, [self._state], start={self._partition: max(ends)})
            undone = await anext(behind, None) is not None
            await behind.aclose()
        places = [self._state, *await self._producer.places_of(config.writes)]
        what = f"the last transaction of {self._name}"
        try:
            await self._producer.resolve(places, commit=not undone, within_s=COMMIT_S, what=what)
        except ProducerFenced as error:
            raise self._owner_changed() from error
        await until_decided(config.bootstrap, [self._state])

    def _owner_changed(self) -> OwnerChanged:
        return OwnerChanged(
            f"another process of {self._ownership.group!r} has {self._name} now: this one was silent for too long. Or "
            "the broker was away for longer than a transaction may take. Nothing is lost."
        )

    @property
    def _name(self) -> str:
        return " and ".join(f"{topic.name}[{self._partition}]" for topic in self._ownership.sources)


def not_ours(group: str, partitions: Collection[int]) -> OwnerChanged:
    """Why partitions are not taken that the consumer group ``group`` does not hold to be this process's."""
    return OwnerChanged(f"partitions {sorted(partitions)} are another's in the group {group!r}, or nobody's yet")


async def acquire_all(ownership: Ownership, partitions: Iterable[int]) -> dict[int, OwnedPartition]:
    """Take ``partitions``, side by side; all of them or, where that raises, none."""
    numbers = sorted(partitions)
    taken = await asyncio.gather(
        *[OwnedPartition.acquire(ownership, number) for number in numbers], return_exceptions=True
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
