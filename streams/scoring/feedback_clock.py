"""How far log time has come in a partition of ``trajectories`` and the same partition of ``feedback``: pure.

    both flow                    as far as the slower of them
    one has nothing to read      as far as the other
    neither has                  on from the newest record, as fast as the wall clock

A window must not close while feedback that was in time waits to be read, as after an outage. So only a topic that was
silent for a while, and has been read to its end, holds nothing back.
"""

from collections.abc import Mapping

IDLE_GRACE_S = 5.0
"""A topic is idle after this long without a record, and time then runs this far behind the wall: a record that is on
its way keeps its place."""


class FeedbackClock:
    """Log time of one pair of partitions; moves forward only."""

    def __init__(self, topics: tuple[str, ...], *, known_ms: int = 0) -> None:
        """``topics``: names of those that are read. ``known_ms``: log time that is known from before a restart."""
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
