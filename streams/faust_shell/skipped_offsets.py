"""Offsets at which a Kafka client found no records: those of transaction markers and of aborted or expired records.

    fetched 40, 41, 44  →  42 and 43 hold no records

Only the client knows this without querying the broker. A later stage that misses 42 and 43 has lost nothing; one that
misses 41 has lost a record.
"""

from collections import defaultdict
from collections.abc import Iterable

from faust.types import TP


class SkippedOffsets:
    """Filled in the consumer's thread, batch by batch, and queried in the app's thread."""

    def __init__(self) -> None:
        self._last: dict[TP, int] = {}
        self._gaps: dict[TP, dict[int, int]] = defaultdict(dict)

    def note(self, place: TP, offsets: Iterable[int]) -> None:
        """Note that the client returned the records at ``offsets``, in this order."""
        previous = self._last.get(place)
        for offset in offsets:
            if previous is not None and offset > previous + 1:
                self._gaps[place][offset] = previous + 1
            previous = offset
        if previous is not None:
            self._last[place] = previous

    def last(self, place: TP) -> int | None:
        """Returns the offset of the record that the client returned last."""
        return self._last.get(place)

    def holds_nothing(self, place: TP, start: int, end: int) -> bool:
        """Whether the client found no records from ``start`` until the record at ``end``. Callable once per gap."""
        return self._gaps[place].pop(end, end) <= start

    def forget(self, place: TP) -> None:
        """Forget ``place``, which another process reads now, or which is read from another offset."""
        self._last.pop(place, None)
        self._gaps.pop(place, None)
