"""How far time has come in a topic that was made of several partitions: as far as the slowest of them.

Records of ``rewards`` bear the timestamps of the ``trajectories`` they were made of. Score reads those partitions one
batch after the other; after an outage it may be hours ahead in one of them. Time taken from the newest record would
then expire groups whose other members are waiting in another partition. Expiring late is harmless, early is not.
"""

from collections.abc import Collection

import msgspec

IDLE_AFTER = 10_000
"""Records of other sources after which one that was silent no longer holds time back."""


class Watermark(msgspec.Struct, tag_field="kind", tag="clock"):
    """The least of the newest timestamps of the sources. A function of the records seen; moves forward only."""

    sources: int
    """How many there are; until each was heard of (or is idle), nothing is known."""
    newest_ms: int | None = None
    """Newest timestamp of any source."""
    passed_ms: int | None = None
    """Time that every source has passed, Unix milliseconds; ``None`` while unknown."""
    records: int = 0
    """Records seen."""
    newest: dict[int, tuple[int, int]] = {}
    """Source → its newest timestamp, and how many records had been seen with its latest."""
    reached_ms: int = 0
    """Log time up to which time was counted; 0 before the first."""
    skipped_ms: int = 0
    """Time before that which does not count: see :meth:`reach`."""

    def see(self, source: int, timestamp_ms: int) -> None:
        """Take notice of a record of ``source``; what says it is of a source that is not there has no part in it."""
        if not 0 <= source < self.sources:
            return
        self.records += 1
        before, _ = self.newest.get(source, (timestamp_ms, 0))
        self.newest[source] = max(before, timestamp_ms), self.records
        self.newest_ms = max(timestamp_ms, self.newest_ms or 0)
        if len(self.newest) >= self.sources or self.records >= IDLE_AFTER:
            heard = [newest for newest, at in self.newest.values() if self.records - at < IDLE_AFTER]
            self.passed_ms = max(min(heard), self.passed_ms or 0)

    def reach(self, now_ms: int, step_ms: int | None) -> None:
        """Log time is ``now_ms``. Of the time since it was last reached, ``step_ms`` at most count for timeouts: while
        Kafka was away no member could come. ``None``: everything counts.
        """
        if now_ms <= self.reached_ms:
            return
        if self.reached_ms and step_ms is not None:
            self.skipped_ms += max(0, now_ms - self.reached_ms - step_ms)
        self.reached_ms = now_ms

    def passed_without(self, drained: Collection[int], quiet_ms: int | None = None) -> int | None:
        """Time that every source has passed but those that are ``drained``: nothing was on its way from them.

        Where all are drained, it is ``quiet_ms``: the partition's log time just before it was asked who is drained
        (Unix milliseconds); what comes later is later than that. ``None`` while unknown.
        """
        held = [source for source in range(self.sources) if source not in drained]
        if not held:
            return quiet_ms
        if any(source not in self.newest for source in held):
            return None
        return min(self.newest[source][0] for source in held)
