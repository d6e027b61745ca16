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

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, read_to_end
from headrace.schemas.topics import EVENTS, REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, Topic
from headrace.streams.ledger.tally import Ledger, Tally
from headrace.streams.raw import LogRecord

__all__ = ["TOPICS_AGAINST_THE_STREAM", "Ledger", "LedgerReader", "Tally", "cut_topics", "kafka_reader", "read_ledger"]

TOPICS_AGAINST_THE_STREAM: tuple[Topic, ...] = (STEPS, REJECTED, TRAINING, REWARDS, TRAJECTORIES, EVENTS)
"""The order of reading. ``steps`` comes before ``rejected`` as the trainer writes both, for different trajectories."""

Read = Callable[[Topic, Mapping[int, int]], AsyncIterator[LogRecord]]
"""Committed records of a topic from these offsets (by partition; else all) to the end as of the call."""


class LedgerReader:
    """Keeps a tally, and reads on from where it was: no record is read twice."""

    def __init__(self, read: Read) -> None:
        self.tally = Tally()
        """Right after each whole :meth:`catch_up`."""
        self._read = read
        self._next: dict[str, dict[int, int]] = {topic.name: {} for topic in TOPICS_AGAINST_THE_STREAM}

    async def catch_up(self) -> None:
        """One round over the topics. Where it raises, call it again before the tally is looked at."""
        for topic in TOPICS_AGAINST_THE_STREAM:
            following = self._next[topic.name]
            async for record in self._read(topic, dict(following)):
                self.tally.add(topic.name, dict(record.headers), record.value)
                following[record.partition] = record.offset + 1


def kafka_reader(bootstrap: str) -> LedgerReader:
    """A reader of the Kafka at ``bootstrap``."""
    return LedgerReader(partial(_from_kafka, bootstrap))


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
