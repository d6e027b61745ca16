"""Merges partitions in stream time: the one order in which a replay processes records.

Live, partitions are read concurrently, in no fixed order. A replay takes the earliest record first, and equally early
ones in the order of their sources. A source's time is the largest timestamp read from it so far, so it never decreases,
and the order is a function of the log.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class StreamTimeOrder(Generic[S, T]):
    """Merges sources. The reader offers their items; none is released while a source might have an earlier one."""

    def __init__(self, sources: Iterable[S]) -> None:
        """``sources`` in the order in which they take precedence at equal time."""
        self._rank = {source: rank for rank, source in enumerate(sources)}
        self._waiting: dict[S, deque[tuple[int, T]]] = {source: deque() for source in self._rank}
        self._time: dict[S, int] = dict.fromkeys(self._rank, 0)
        self._starving = set(self._rank)
        self._heads: list[tuple[int, int, S]] = []

    @property
    def starving(self) -> set[S]:
        """Sources that must be read or ended before :meth:`ready` yields anything."""
        return self._starving

    def offer(self, source: S, items: Iterable[tuple[int, T]]) -> None:
        """Add the next items of ``source``, each with its timestamp in Unix milliseconds."""
        queue, time_ms = self._waiting[source], self._time[source]
        for timestamp_ms, item in items:
            time_ms = max(time_ms, timestamp_ms)
            queue.append((time_ms, item))
        self._time[source] = time_ms
        if queue and source in self._starving:
            self._starving.discard(source)
            self._push(source)

    def end(self, source: S) -> None:
        """Mark ``source`` as exhausted."""
        del self._time[source]
        self._starving.discard(source)

    def ready(self) -> Iterator[tuple[int, S, T]]:
        """Yields the items that are known to be next as (stream time, source, item), until a source must be read."""
        while self._heads and not self._starving:
            _, _, source = heappop(self._heads)
            queue = self._waiting[source]
            time_ms, item = queue.popleft()
            if queue:
                self._push(source)
            elif source in self._time:
                self._starving.add(source)
            yield time_ms, source, item

    def _push(self, source: S) -> None:
        heappush(self._heads, (self._waiting[source][0][0], self._rank[source], source))
