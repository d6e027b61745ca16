"""The ledger: every trajectory that was started, and what became of it. It adds up, or says that it does not.

    started ──▶ open ──▶ unscored ──▶ ungrouped ──▶ untrained ──▶ trained at step n
                              (pending)   └──▶ rejected ◀──┘      or rejected by stage and reason

It may be taken at any moment, while everything runs and while parts are killed. The topics are read against the
stream, ``steps`` first and ``events`` last, each at least to its end as of the moment when its reading begins. Let e be
a record that was read, and c one that it was made of, in a topic further up. Whoever made e had read c, as a committed
record, before e was there; and e was there before the reading of c's topic began. So c lies before the end that this
reading goes to. No effect is ever seen without its cause: a contradiction is one of the log, and not of the looking.

Reading on changes nothing about that. Topics grow at their ends only, and each is read without a gap: after any number
of rounds what was read of a topic is everything up to a point, and the points were reached in the same order as in one
round from the beginning. A round that was cut off, as by a broker that restarts, leaves points of different ages: the
tally is not looked at then, and the next whole round sets it right.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial

from headrace.schemas.kafka.bookmarks import BookmarkedReader, Marks, Read
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, read_to_end
from headrace.schemas.topics import EVENTS, REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, Topic
from headrace.streams.ledger.tally import Ledger, Tally
from headrace.streams.raw import LogRecord

__all__ = ["TOPICS_AGAINST_THE_STREAM", "Ledger", "LedgerReader", "Tally", "cut_topics", "kafka_reader", "read_ledger"]

TOPICS_AGAINST_THE_STREAM: tuple[Topic, ...] = (STEPS, REJECTED, TRAINING, REWARDS, TRAJECTORIES, EVENTS)
"""The order of reading. ``steps`` comes before ``rejected`` as the trainer writes both, for different trajectories."""


class LedgerReader:
    """Keeps a tally, and reads on from where it was: no record is folded twice."""

    def __init__(self, read: Read[LogRecord], tally: Tally | None = None, marks: Marks | None = None) -> None:
        """``tally`` and ``marks``: those of an earlier reader, right after a whole :meth:`catch_up`."""
        self.tally = tally or Tally()
        """Right after each whole :meth:`catch_up`."""
        self._reader = BookmarkedReader(read, marks)

    async def catch_up(self) -> None:
        """One round over the topics. Where it raises, call it again before the tally is looked at.

        Raises :class:`LogReplacedError`, which calling again does not mend, where ``marks`` are those of another log.
        """
        for topic in TOPICS_AGAINST_THE_STREAM:
            async with aclosing(self._reader.unread(topic)) as records:
                async for record in records:
                    self.tally.add(topic.name, dict(record.headers), record.value)

    @property
    def marks(self) -> Marks:
        """How far the tally goes, right after a whole :meth:`catch_up`."""
        return self._reader.marks

    @property
    def positions(self) -> Mapping[str, Mapping[int, int]]:
        """Topic → partition → offset of the next record."""
        return self._reader.positions


def kafka_reader(bootstrap: str, tally: Tally | None = None, marks: Marks | None = None) -> LedgerReader:
    """A reader of the Kafka at ``bootstrap``."""
    return LedgerReader(partial(_from_kafka, bootstrap), tally, marks)


async def read_ledger(bootstrap: str) -> Ledger:
    """The ledger of everything in the Kafka at ``bootstrap`` as of now, also while everything runs."""
    reader = kafka_reader(bootstrap)
    await reader.catch_up()
    return reader.tally.ledger(cut=await cut_topics(bootstrap))


async def cut_topics(bootstrap: str) -> frozenset[str]:
    """Which of the topics with a retention have lost their oldest records."""
    found = set()
    async with open_consumer(bootstrap) as consumer:
        for topic in (EVENTS, TRAJECTORIES):
            begins = await consumer.beginning_offsets(await partitions_of(consumer, topic))
            if any(begins.values()):
                found.add(topic.name)
    return frozenset(found)


def _from_kafka(bootstrap: str, topic: Topic, start: Mapping[int, int]) -> AsyncIterator[KafkaRecord]:
    return read_to_end(bootstrap, topic, start=start)
