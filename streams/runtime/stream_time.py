"""Stream time of a partition of co-partitioned topics, such as ``trajectories`` and ``feedback``.

    both topics have records     the earlier of the two
    one is idle                  the time of the other
    both are idle                the newest record's time, advanced by the wall clock

A window must not close while feedback that arrived in time is still unread, as after an outage. So a topic counts as
idle only if it has been read to its end and had no record for some time.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from headrace.schemas.bounds import is_time
from headrace.streams.raw import LogRecord
from headrace.streams.runtime.processor import Operator

IDLE_GRACE_S = 5.0
"""A topic is idle after so many seconds without a record. Stream time then lags the wall clock by as much, so that a
record in flight is not late."""


class PartitionTime:
    """Stream time of one partition of some topics; it never goes back. Pure: the caller measures idle times."""

    def __init__(self, topics: tuple[str, ...], *, known_ms: int = 0) -> None:
        """``topics``: names of the topics that are read. ``known_ms``: stream time before the restart."""
        self.topics = topics
        self._known_ms = known_ms
        self._newest: dict[str, int] = {}
        self._passed_ms = 0

    def see(self, topic: str, timestamp_ms: int) -> None:
        """Note a record of ``topic``."""
        self._newest[topic] = max(timestamp_ms, self._newest.get(topic, 0))

    def passed_ms(self, idle_s: Mapping[str, float]) -> int:
        """Stream time that every topic has reached, Unix milliseconds; 0 while unknown.

        ``idle_s``: seconds without a record, for each topic that was read to its end.
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
    """What a clock may query from the consumer."""

    async def caught_up(self, topic: str, partition: int) -> bool:
        """Whether every record in the partition was processed."""

    async def has_taken(self, topic: str, partition: int, end: int) -> bool:
        """Whether everything before the offset ``end`` was processed."""


class StreamClock(Protocol):
    """Determines stream time in idle partitions."""

    def start(self, operators: Mapping[int, Any]) -> None:
        """These partitions were assigned."""

    def see(self, record: LogRecord) -> None:
        """A record was read."""

    async def passed_ms(self, waiting: Mapping[int, Any], reading: Reading) -> Mapping[int, int]:
        """Stream time (Unix milliseconds) by partition, for the partitions in ``waiting`` where it is known."""


class CopartitionedClock:
    """A :class:`PartitionTime` per partition."""

    def __init__(self, topics: Sequence[str]) -> None:
        """``topics``: names of the topics that are read."""
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
