"""What a Kafka client found no records at, as it read: offsets of transaction markers, of aborted and expired records.

    fetched 40, 41, 44  →  42 and 43 hold nothing

The client alone knows this without asking the log again. Whoever comes after it and misses 42 and 43 has lost nothing;
whoever misses 41 has.
"""

from collections import defaultdict
from collections.abc import Iterable

from faust.types import TP


class PassedOver:
    """Fed in the consumer's thread, batch by batch, and asked in the app's."""

    def __init__(self) -> None:
        self._last: dict[TP, int] = {}
        self._gaps: dict[TP, dict[int, int]] = defaultdict(dict)

    def note(self, place: TP, offsets: Iterable[int]) -> None:
        """The client returned the records at ``offsets``, in its order."""
        previous = self._last.get(place)
        for offset in offsets:
            if previous is not None and offset > previous + 1:
                self._gaps[place][offset] = previous + 1
            previous = offset
        if previous is not None:
            self._last[place] = previous

    def last(self, place: TP) -> int | None:
        """Offset of the record that the client returned last."""
        return self._last.get(place)

    def holds_nothing(self, place: TP, start: int, end: int) -> bool:
        """Whether the client found no records from ``start`` until the record at ``end``. To be asked once."""
        return self._gaps[place].pop(end, end) <= start

    def forget(self, place: TP) -> None:
        """``place`` is read by somebody else, or from elsewhere."""
        self._last.pop(place, None)
        self._gaps.pop(place, None)
