"""Watermark of a topic that is derived from several partitions: the stream time of the slowest of them.

Records of ``rewards`` have the timestamps of their ``trajectories``. Score reads those partitions batch by batch; after
an outage it may be hours ahead in one of them. The newest timestamp would then expire groups whose other members are
still unread in another partition. Expiring late is harmless; expiring early is not.
"""

from collections.abc import Collection

import msgspec

IDLE_AFTER = 10_000
"""Records of other sources after which a silent source no longer holds back time."""


class Watermark(msgspec.Struct, tag_field="kind", tag="clock"):
    """The minimum of the sources' newest timestamps. Depends only on the records seen, and never decreases."""

    sources: int
    """Number of sources; the watermark is unknown until each had a record or is idle."""
    newest_ms: int | None = None
    """Newest timestamp of any source."""
    passed_ms: int | None = None
    """Time that every source has passed, Unix milliseconds; ``None`` while unknown."""
    records: int = 0
    """Records seen."""
    newest: dict[int, tuple[int, int]] = {}
    """Source → its newest timestamp, and the value of ``records`` at its latest record."""
    reached_ms: int = 0
    """Stream time at the last :meth:`reach`, Unix milliseconds; 0 initially."""
    skipped_ms: int = 0
    """Milliseconds up to ``reached_ms`` that timeouts exclude; see :meth:`reach`."""

    def see(self, source: int, timestamp_ms: int) -> None:
        """Add a record of ``source``; a record of a source that does not exist is ignored."""
        if not 0 <= source < self.sources:
            return
        self.records += 1
        before, _ = self.newest.get(source, (timestamp_ms, 0))
        self.newest[source] = max(before, timestamp_ms), self.records
        self.newest_ms = max(timestamp_ms, self.newest_ms or 0)
        if len(self.newest) >= self.sources or self.records >= IDLE_AFTER:
            active = [newest for newest, at in self.newest.values() if self.records - at < IDLE_AFTER]
            self.passed_ms = max(min(active), self.passed_ms or 0)

    def reach(self, now_ms: int, step_ms: int | None) -> None:
        """Advance stream time to ``now_ms``. At most ``step_ms`` of the advance counts for timeouts, because no member
        can arrive while Kafka is unavailable. ``None``: all of it counts.
        """
        if now_ms <= self.reached_ms:
            return
        if self.reached_ms and step_ms is not None:
            self.skipped_ms += max(0, now_ms - self.reached_ms - step_ms)
        self.reached_ms = now_ms

    def passed_without(self, drained: Collection[int], quiet_ms: int | None = None) -> int | None:
        """Returns the time that every source has passed, except those in ``drained``, which have no records in flight.

        If all are drained, it is ``quiet_ms``: the partition's stream time just before the check (Unix milliseconds);
        later records have later timestamps. ``None`` while unknown.
        """
        held = [source for source in range(self.sources) if source not in drained]
        if not held:
            return quiet_ms
        if any(source not in self.newest for source in held):
            return None
        return min(self.newest[source][0] for source in held)
