"""What stays known of closed trajectories, so that an event sent again is told from a new trajectory's first.

The latest are known: as many as the limits allow by count and by memory, whatever is sent again since. Which those are
follows from the order in which trajectories closed and from nothing else, so a restart finds the same.
"""

from collections import deque

import msgspec

from headrace.streams.assembly.gaps import Gaps, in_gap

_BYTES = 180
"""Memory of one beside its id and gaps: Python's objects, and its places in what holds it."""


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """What stays known of one: which events it had."""

    subject: bytes
    """Its id."""
    top: int
    """Highest sequence number; −1 with none."""
    gaps: Gaps
    """Sequence numbers up to it that never came."""
    start_id: bytes | None = None
    """``ce_id`` of event 0, where that is known."""

    def holds(self, sequence: int) -> bool:
        """Whether the event ``sequence`` came before the trajectory closed."""
        return sequence <= self.top and not in_gap(self.gaps, sequence)

    @property
    def size(self) -> int:
        """Memory, in bytes, about."""
        return _BYTES + len(self.subject) + len(self.gaps) * self.gaps.itemsize + len(self.start_id or b"")


class Emitted(msgspec.Struct, frozen=True, gc=False):
    """A trajectory that was written, as a restart finds it in the output."""

    offset: int
    """Where it stands in the output partition."""
    first: int
    """Input offset of its first record."""
    closed_offset: int
    """Input offset from which on it was closed."""
    remembered: Remembered
    """Which events it had."""


class Memory:
    """The latest closed trajectories, at most ``most`` of them in ``max_bytes``."""

    def __init__(self, most: int, max_bytes: int) -> None:
        self.known: dict[bytes, Remembered] = {}
        """By id; always the same dict."""
        self.size = 0
        """Memory of all, in bytes, about."""
        self._most = most
        self._max_bytes = max_bytes
        self._order: deque[Remembered] = deque()

    def add(self, latest: Remembered) -> None:
        """Remember ``latest``, and forget the oldest beyond the bounds."""
        self.known[latest.subject] = latest
        self._order.append(latest)
        self.size += latest.size
        while len(self._order) > self._most or (self.size > self._max_bytes and len(self._order) > 1):
            oldest = self._order.popleft()
            self.size -= oldest.size
            if self.known[oldest.subject] is oldest:
                del self.known[oldest.subject]
