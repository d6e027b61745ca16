"""The ledger: the fate of every started trajectory, with a check that the counts add up.

    started ──▶ open ──▶ unscored ──▶ ungrouped ──▶ untrained ──▶ trained at step n
                              (pending)   └──▶ rejected ◀──┘      or rejected by stage and reason

It can be read at any time, while all processes run and while some are killed. Topics are read against the direction of
the stream, ``steps`` first and ``events`` last, each at least to its log end at the moment when its reading begins. Let
e be a record that was read, and c one of its inputs, in an upstream topic. The process that wrote e had read c, as a
committed record, before it wrote e; and e was written before the reading of c's topic began. So c is before the log end
to which c's topic is read. An effect is never seen without its cause: every contradiction is real, and not an artefact
of reading.

Incremental reading keeps this property. Topics grow only at their ends, and each is read without a gap: after any
number of passes, the part of a topic that was read is everything up to some offset, and these offsets were reached in
the same order as in a single pass from the start. An interrupted pass, as by a broker restart, leaves offsets of
different ages; the tally is not used then, and the next complete pass corrects it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial

from headrace.schemas.envelope import SUBJECT, TYPE
from headrace.schemas.kafka.bookmarks import BookmarkedReader, Marks, Read
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import report_expired
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import EVENTS, REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, Topic
from headrace.streams.ledger.tally import Ledger, LedgerTally
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import LogRecord
from headrace.streams.reading.topic_reader import read_topic

__all__ = [
    "TOPICS_AGAINST_THE_STREAM",
    "Ledger",
    "LedgerReader",
    "LedgerTally",
    "cut_topics",
    "kafka_reader",
    "read_ledger",
]

TOPICS_AGAINST_THE_STREAM: tuple[Topic, ...] = (STEPS, REJECTED, TRAINING, REWARDS, TRAJECTORIES, EVENTS)
"""The order of reading. ``steps`` comes before ``rejected``; the trainer writes both, for different trajectories."""


class LedgerReader:
    """Keeps a tally and reads incrementally: no record is folded twice."""

    def __init__(self, read: Read[LogRecord], tally: LedgerTally | None = None, marks: Marks | None = None) -> None:
        """``tally`` and ``marks``: those of an earlier reader after a complete :meth:`catch_up`."""
        self.tally = tally or LedgerTally()
        """The fold; valid after a complete :meth:`catch_up`."""
        self._reader = BookmarkedReader(read, marks)

    async def catch_up(self) -> None:
        """Read all topics to their ends. If it raises, call it again before using the tally.

        Raises :class:`LogReplacedError`, which a retry does not fix, if ``marks`` belong to another Kafka cluster or to
        recreated topics.
        """
        for topic in TOPICS_AGAINST_THE_STREAM:
            async with aclosing(self._reader.unread(topic)) as records:
                async for record in records:
                    self.tally.add(topic.name, _headers_of(record), record.value)

    @property
    def marks(self) -> Marks:
        """The position of the tally; valid after a complete :meth:`catch_up`."""
        return self._reader.marks

    @property
    def positions(self) -> Mapping[str, Mapping[int, int]]:
        """Topic → partition → offset of the next record."""
        return self._reader.positions


def kafka_reader(bootstrap: str, tally: LedgerTally | None = None, marks: Marks | None = None) -> LedgerReader:
    """Returns a reader of the Kafka at ``bootstrap``."""
    return LedgerReader(partial(_from_kafka, bootstrap), tally, marks)


async def read_ledger(bootstrap: str) -> Ledger:
    """Returns the current ledger of the Kafka at ``bootstrap``; processes may be running."""
    reader = kafka_reader(bootstrap)
    await reader.catch_up()
    return reader.tally.ledger(cut=await cut_topics(bootstrap))


async def cut_topics(bootstrap: str) -> frozenset[str]:
    """Returns the topics whose oldest records retention has deleted."""
    found = set()
    async with open_consumer(bootstrap) as consumer:
        for topic in (EVENTS, TRAJECTORIES):
            begins = await consumer.beginning_offsets(await partitions_of(consumer, topic))
            if any(begins.values()):
                found.add(topic.name)
    return frozenset(found)


def _headers_of(record: LogRecord) -> Mapping[str, bytes | None]:
    """Returns the headers that a tally looks at. An arrival has parsed them; a list of all of its headers takes longer
    than the rest of the fold.
    """
    if SPEEDUPS is not None and isinstance(record, SPEEDUPS.Arrival):
        return {TYPE: record.kind, SUBJECT: record.subject}
    return dict(record.headers)


def _from_kafka(bootstrap: str, topic: Topic, start: Mapping[int, int]) -> AsyncIterator[LogRecord]:
    return read_topic(bootstrap, topic, start=start, on_expired=partial(report_expired, "ledger"))
