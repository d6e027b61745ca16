"""Memory of closed trajectories, which tells a repeated event from the first event of a new trajectory.

It holds the latest closed trajectories, as many as the limits on count and memory allow. They depend only on the order
in which trajectories closed, not on repeated events, so a restart rebuilds the same memory.
"""

from collections import deque

import msgspec

from headrace.streams.assembly.gaps import Gaps, in_gap

_BYTES = 180
"""Memory of one entry in addition to its id and gaps: Python objects and container slots."""


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """The sequence numbers of one closed trajectory."""

    subject: bytes
    """Trajectory id."""
    top: int
    """Highest sequence number; −1 if there is none."""
    gaps: Gaps
    """Missing sequence numbers below ``top``."""
    start_id: bytes | None = None
    """``ce_id`` of event 0, if that is known."""

    def holds(self, sequence: int) -> bool:
        """Whether the event ``sequence`` arrived before the trajectory closed."""
        return sequence <= self.top and not in_gap(self.gaps, sequence)

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return _BYTES + len(self.subject) + len(self.gaps) * self.gaps.itemsize + len(self.start_id or b"")


class Emitted(msgspec.Struct, frozen=True, gc=False):
    """A written trajectory, as a restart reads it from the output."""

    offset: int
    """Offset in the output partition."""
    first: int
    """Input offset of its first record."""
    closed_offset: int
    """Input offset from which on it was closed."""
    remembered: Remembered
    """Its sequence numbers."""


class Memory:
    """The latest closed trajectories, at most ``most`` of them in ``max_bytes``."""

    def __init__(self, most: int, max_bytes: int) -> None:
        self.known: dict[bytes, Remembered] = {}
        """By trajectory id; always the same dict object."""
        self.size = 0
        """Approximate memory of all entries in bytes."""
        self._most = most
        self._max_bytes = max_bytes
        self._order: deque[Remembered] = deque()

    def add(self, latest: Remembered) -> None:
        """Remember ``latest``, and drop the oldest entries beyond the limits."""
        self.known[latest.subject] = latest
        self._order.append(latest)
        self.size += latest.size
        while len(self._order) > self._most or (self.size > self._max_bytes and len(self._order) > 1):
            oldest = self._order.popleft()
            self.size -= oldest.size
            if self.known[oldest.subject] is oldest:
                del self.known[oldest.subject]
