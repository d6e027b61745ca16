"""A partition whose state, outputs and offsets are written in one transaction, by the process that owns it.

    input offset 41..60 ──fold──▶ state topic: 3 keys ─┐
                                  outputs: 5 records ──┼─ one transaction
                                  committed offset 61 ─┘

Its producer has a transactional ID that never changes. Starting it fences the previous owner: its open transaction is
aborted, and every later one is refused, for example of a suspended process that wakes up. Only then are the committed
offsets and the state read, so they belong together, and no later write of the previous owner can follow them.

A broker that stops at the wrong moment may leave a transaction without its end in a partition. So each transaction
writes at least one record to the state, and the commit's metadata has the end offset of the state: records after it
were not committed. From this the next owner knows how the last transaction ended, and ends it that way everywhere.
"""

import asyncio
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Never, Self

from aiokafka import TopicPartition
from aiokafka.errors import ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.kafka.expired import ExpiredRange, expired_range
from headrace.schemas.kafka.fenced_producer import FencedProducer, Transaction, open_fenced_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, scan
from headrace.schemas.kafka.sending import OutgoingRecord
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.kafka.transactions import until_decided
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import Topic
from headrace.streams.lost_offset import LostOffsetError, expired_alert, publish
from headrace.streams.raw import Outgoing, to_send
from headrace.streams.runtime.replaced_logs import is_new_topic, refusal, replaced_logs
from headrace.streams.runtime.state_keys import COMMITTED, key_of, stored_key

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""How long readers wait for a process that died and has no successor."""
COMMIT_S = TRANSACTION_TIMEOUT_MS / 1000 + 30
"""Limit of the wait for a transaction: the broker has aborted it by then."""

STATE_BYTES = 1024 * 1024
"""Largest record of a state topic. State is bounded far below; a larger record would fail every commit."""

_TOPIC_IDS = "topic_ids"
"""Field of the record ``COMMITTED``: the id of each source, since the offsets of a recreated topic mean other records.
No topic has this name."""


class OwnerChanged(RuntimeError):
    """Another process owns the partition now; the write of this one was refused."""


class StateTopic(Topic):
    """A compacted topic: the state of one processor."""

    @property
    def configs(self) -> dict[str, str]:
        """Topic-level settings as Kafka names them."""
        return {"cleanup.policy": "compact", "max.message.bytes": str(self.max_bytes)}


@dataclass(frozen=True, slots=True)
class Ownership:
    """The settings that the partitions of a processor share."""

    bootstrap: str
    """Kafka, ``host:port``; several by comma."""
    group: str
    """Consumer group whose offsets are committed."""
    sources: tuple[Topic, ...]
    """The inputs; partition p of all of them has one owner."""
    state: Topic
    """Topic of the state. Partition p has the state of partition p of ``sources``."""
    writes: tuple[Topic, ...]
    """Topics of the outputs."""


class OwnedPartition:
    """One partition of the inputs, from its acquisition on."""

    def __init__(self, ownership: Ownership, partition: int) -> None:
        self.state: dict[bytes, KafkaRecord] = {}
        """The state at acquisition: records of its topic by key, in the order of the last writes."""
        self.offsets: dict[str, int] = {}
        """Committed offset by topic; empty before the first commit."""
        self._ownership = ownership
        self._partition = partition
        self._state = TopicPartition(ownership.state.name, partition)
        self._open = AsyncExitStack()
        self._lost: OwnerChanged | None = None
        self._alerts: list[Outgoing] = []
        self._reported_to: dict[str, int] = {}
        self._expired_to: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._producer: FencedProducer

    @classmethod
    async def acquire(cls, ownership: Ownership, partition: int) -> Self:
        """Fence the previous owner, then read offsets and state. To be closed by :meth:`release`."""
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

        ``offsets``: first offset that was not processed, by topic; empty if only stream time has passed. Raises
        :class:`OwnerChanged` if another process has acquired the partition, and aiokafka's errors if the broker does
        not answer: the transaction may then be committed or not, which the next acquisition determines.
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
        name, partition = self._state
        records = [to_send(each) for each in (*self._alerts, *outgoing)]
        records += [OutgoingRecord(name, stored_key(key), value, partition=partition) for key, value in state.items()]
        progress = json.dumps(committed | {_TOPIC_IDS: self._topic_ids}).encode()
        records.append(OutgoingRecord(name, COMMITTED, progress, partition=partition))
        state_end = (await transaction.send_all(records))[-1] + 1
        if committed:
            await transaction.commit_offsets(
                {
                    TopicPartition(topic, self._partition): OffsetAndMetadata(offset, str(state_end))
                    for topic, offset in committed.items()
                },
                self._ownership.group,
            )

    def note_expired(self, expired: ExpiredRange | None) -> None:
        """Raise an alert about records of an input that retention deleted unread, with the next commit; at most one
        about each offset.
        """
        if expired is None:
            return
        topic = expired.place.topic
        reported_to = max(self._reported_to.get(topic, 0), self.offsets.get(topic, 0))
        if reported_to < expired.begin:
            self._reported_to[topic] = expired.begin
            if expired.position <= self.offsets.get(topic, -1):  # every record before it was processed
                self._expired_to[topic] = expired.begin
            rest = expired._replace(position=max(expired.position, reported_to))
            self._alerts.append(expired_alert(self._ownership.group, rest))

    async def commit_alerts(self) -> None:
        """Write alerts that wait for a commit, and commit the log start where only expired records come before it, so
        that no restart raises them again; raises as :meth:`commit`."""
        if self._alerts:
            expired_to, self._expired_to = self._expired_to, {}
            await self.commit({t: to for t, to in expired_to.items() if to > self.offsets.get(t, 0)}, {}, [])

    async def release(self) -> None:
        """Stop the producer. What was committed stays."""
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
            committed: KafkaRecord | None = None
            async for record in scan(reader, [self._state]):
                if record.key == COMMITTED:
                    committed = record if record.value is not None else None
                    continue
                key = key_of(record.key)
                self.state.pop(key, None)
                if record.value is not None:
                    self.state[key] = record
            stored = json.loads((committed.value if committed is not None else None) or b"null")
            read_from = stored.pop(_TOPIC_IDS, {}) if stored is not None else {}
            self._restore_offsets(stored, bool(self.state) or committed is not None)
            begins, ends = await reader.beginning_offsets(sources), await reader.end_offsets(sources)
        by_hand = {each.topic for each, commit in commits.items() if commit.offset >= 0 and not commit.metadata}
        self._topic_ids = await topic_ids(config.bootstrap, [topic.name for topic in config.sources])
        # An offset that a person has set stands.
        read_from = {topic: its_id for topic, its_id in read_from.items() if topic not in by_hand}
        if logs := replaced_logs(self.offsets, ends, read_from, self._topic_ids):
            await self._refuse(logs, read_from)
        for source in sources:
            self.note_expired(expired_range(source, self.offsets.get(source.topic), begins[source]))
        logger.info(
            "%s continues at %s with %d entries of state (%.1f s)",
            self._name, self.offsets, len(self.state), time.monotonic() - started,
        )  # fmt: skip

    async def refuse(self, log: ReplacedLog) -> Never:
        """Raise :class:`LostOffsetError`, as an acquisition would: the client has found that ``log``, of a source, ends
        before what it has read.
        """
        topic, read_from = log.place.topic, self._topic_ids
        self._topic_ids = read_from | await topic_ids(self._ownership.bootstrap, [topic])
        await self._refuse([log._replace(position=self.offsets.get(topic, log.position))], read_from)

    async def _refuse(self, logs: Iterable[ReplacedLog], read_from: Mapping[str, str]) -> Never:
        """Raise :class:`LostOffsetError`, with alerts. Of a recreated topic the start is committed, for the next owner.
        ``read_from``: the ids of the topics that the committed offsets belong to, as far as they are known.
        """
        config = self._ownership
        sentences, alerts, offsets = [], [], dict[str, int]()
        for log in logs:
            topic = log.place.topic
            is_new = is_new_topic(topic, read_from, self._topic_ids)
            topic_id = self._topic_ids.get(topic, "")
            sentence, alert = refusal(config.bootstrap, config.group, log, topic_id, is_new=is_new)
            sentences.append(sentence)
            if is_new:
                alerts.append(alert)
                offsets[topic] = 0
            else:
                await publish(config.bootstrap, alert)
        if offsets:
            await self.commit(offsets, {}, alerts)
        raise LostOffsetError("; ".join(sentences))

    def _restore_offsets(self, committed: dict[str, int] | None, has_state: bool) -> None:
        """If the broker has expired committed offsets (``offsets.retention.minutes``), continue at the offsets in the
        state. Raises :class:`LostOffsetError` if the state is of an older version, which did not store them.
        """
        missing = [topic.name for topic in self._ownership.sources if topic.name not in self.offsets]
        if not missing or not has_state:
            return
        if committed is None:
            if self.offsets:  # a source that was added later
                return
            commands = " ".join(f"--topic {name}:{self._partition}" for name in missing)
            raise LostOffsetError(
                f"the broker has expired the committed offset of {self._name} (offsets.retention.minutes), and its "
                "state exists. Set the offset at which to continue, with every process of the group stopped: "
                f"kafka-consumer-groups.sh --bootstrap-server {self._ownership.bootstrap} --group "
                f"{self._ownership.group} {commands} --reset-offsets --to-datetime 2026-01-31T00:00:00.000 --execute "
                "(decisions since then are made again)"
            )
        for name in missing:
            if name in committed:
                self.offsets[name] = committed[name]
                logger.warning(
                    "the broker has expired the committed offset of %s[%d]: continuing at %d, the offset in the state",
                    name, self._partition, committed[name],
                )  # fmt: skip

    async def _end_last_transaction(self, metadata: Collection[str]) -> None:
        """End the last transaction wherever a broker left it without an end, as its commit requires, and wait for the
        end in the state."""
        config = self._ownership
        ends = [int(text) for text in metadata if text.isdecimal()]
        if not ends:  # no commit yet, or only by an older version without the metadata
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
            f"another process of {self._ownership.group!r} owns {self._name} now, because this one did not respond for "
            "too long; or the broker was unavailable for longer than a transaction may take. Nothing is lost."
        )

    @property
    def _name(self) -> str:
        return " and ".join(f"{topic.name}[{self._partition}]" for topic in self._ownership.sources)


def not_ours(group: str, partitions: Collection[int]) -> OwnerChanged:
    """The error for partitions that the consumer group ``group`` has not assigned to this process."""
    return OwnerChanged(
        f"partitions {sorted(partitions)} of the group {group!r} are assigned to another process, or not yet"
    )


async def acquire_all(ownership: Ownership, partitions: Iterable[int]) -> dict[int, OwnedPartition]:
    """Acquire ``partitions`` concurrently; if one raises, none is kept."""
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
    """Release ``partitions`` concurrently."""
    await asyncio.gather(*[each.release() for each in partitions])


async def create_state_topic(bootstrap: str, name: str, *, partitions: int, about: str) -> Topic:
    """The topic ``name``, created if it is missing."""
    topic = StateTopic(name, "kind and ids", (), partitions, about)
    await create_topics(bootstrap, [topic])
    return topic
