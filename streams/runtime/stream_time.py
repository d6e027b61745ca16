"""How far stream time has come in a partition of co-partitioned topics, such as ``trajectories`` and ``feedback``.

    both flow                    as far as the slower of them
    one has nothing to read      as far as the other
    neither has                  on from the newest record, as fast as the wall clock

A window must not close while feedback that was in time waits to be read, as after an outage. So only a topic that was
silent for a while, and has been read to its end, holds nothing back.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from headrace.schemas.bounds import is_time
from headrace.streams.raw import LogRecord
from headrace.streams.runtime.processor import Operator

IDLE_GRACE_S = 5.0
"""A topic is idle after this long without a record, and time then runs this far behind the wall: a record that is on
its way keeps its place."""


class PartitionTime:
    """Stream time of one partition of some topics; moves forward only. Pure: silence is measured by who asks."""

    def __init__(self, topics: tuple[str, ...], *, known_ms: int = 0) -> None:
        """``topics``: names of those that are read. ``known_ms``: stream time that is known from before a restart."""
        self.topics = topics
        self._known_ms = known_ms
        self._newest: dict[str, int] = {}
        self._passed_ms = 0

    def see(self, topic: str, timestamp_ms: int) -> None:
        """Take notice of a record of ``topic``."""
        self._newest[topic] = max(timestamp_ms, self._newest.get(topic, 0))

    def passed_ms(self, idle_s: Mapping[str, float]) -> int:
        """Time that every topic has passed, Unix milliseconds; 0 while unknown.

        ``idle_s`` says of the topics that were read to their end for how long they have been silent, in seconds.
        """
        flowing = [topic for topic in self.topics if idle_s.get(topic, 0.0) <= IDLE_GRACE_S]
        if flowing:
            passed = min(self._newest.get(topic, 0) for topic in flowing)
        else:
            silent_s = min(idle_s[topic] for topic in self.topics) - IDLE_GRACE_S
            passed = max([self._known_ms, *self._newest.values()]) + round(silent_s * 1000)
        self._passed_ms = max(passed, self._passed_ms)
        return self._passed_ms


class Reading(Protocol):
    """What a clock may ask about the consumer."""

    async def caught_up(self, topic: str, partition: int) -> bool:
        """Whether everything that stands in the partition was processed."""

    async def has_taken(self, topic: str, partition: int, end: int) -> bool:
        """Whether everything before the offset ``end`` was processed."""


class StreamClock(Protocol):
    """Says how far stream time has come in partitions where nothing flows."""

    def start(self, operators: Mapping[int, Any]) -> None:
        """These partitions were assigned."""

    def see(self, record: LogRecord) -> None:
        """A record was read."""

    async def passed_ms(self, waiting: Mapping[int, Any], reading: Reading) -> Mapping[int, int]:
        """Stream time (Unix milliseconds) by partition, of those among ``waiting`` where it is known."""


class CopartitionedClock:
    """A :class:`PartitionTime` a partition."""

    def __init__(self, topics: Sequence[str]) -> None:
        """``topics``: names of those that are read."""
        self._topics = tuple(topics)
        self._times: dict[int, PartitionTime] = {}
        self._seen_at: dict[tuple[str, int], float] = {}

    def start(self, operators: Mapping[int, Operator]) -> None:
        """These partitions were assigned."""
        self._times = {
            number: PartitionTime(self._topics, known_ms=operator.newest_ms) for number, operator in operators.items()
        }
        self._seen_at = {(topic, number): monotonic() for topic in self._topics for number in operators}

    def see(self, record: LogRecord) -> None:
        """A record was read."""
        self._seen_at[record.topic, record.partition] = monotonic()
        if is_time(record.timestamp):
            self._times[record.partition].see(record.topic, record.timestamp)

    async def passed_ms(self, waiting: Mapping[int, Operator], reading: Reading) -> dict[int, int]:
        """Stream time (Unix milliseconds) by partition; 0 while unknown."""
        passed = {}
        for number in waiting:
            now = monotonic()
            idle_s = {
                topic: now - self._seen_at[topic, number]
                for topic in self._topics
                if await reading.caught_up(topic, number)
            }
            passed[number] = self._times[number].passed_ms(idle_s)
        return passed
