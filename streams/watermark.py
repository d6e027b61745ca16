"""How far time has come in a topic that was made of several partitions: as far as the slowest of them.

Records of ``rewards`` bear the timestamps of the ``trajectories`` they were made of. Score reads those partitions one
batch after the other; after an outage it may be hours ahead in one of them. Time taken from the newest record would
then expire groups whose other members are waiting in another partition. Expiring late is harmless, early is not.
"""

IDLE_AFTER = 10_000
"""Records of other sources after which one that was silent no longer holds time back."""


class Watermark:
    """The least of the newest timestamps of the sources. A function of the records seen; moves forward only."""

    def __init__(self, sources: int) -> None:
        """``sources`` is how many there are; until each was heard of (or is idle), nothing is known."""
        self.sources = sources
        self.newest_ms: int | None = None
        """Newest timestamp of any source."""
        self.passed_ms: int | None = None
        """Time that every source has passed, Unix milliseconds; ``None`` while unknown."""
        self._records = 0
        self._newest: dict[int, tuple[int, int]] = {}

    def see(self, source: int, timestamp_ms: int) -> None:
        """Take notice of a record of ``source``."""
        self._records += 1
        before, _ = self._newest.get(source, (timestamp_ms, 0))
        self._newest[source] = max(before, timestamp_ms), self._records
        self.newest_ms = max(timestamp_ms, self.newest_ms or 0)
        heard = [newest for newest, at in self._newest.values() if self._records - at < IDLE_AFTER]
        if len(self._newest) >= self.sources or self._records >= IDLE_AFTER:
            self.passed_ms = max(min(heard), self.passed_ms or 0)
