"""aiokafka's knowledge of topics and leaders: a producer's topics stay in it, and it is asked for at a bounded pace.

    before anything is written: every topic ──▶ send(unknown topic): asks for that one, forgets the others
                                                 └─▶ batches of theirs have no leader: asks again, at once, and again

A client of aiokafka (0.13) asks for all topics until it has a list, and a producer puts a topic on its list only where
it does not know it. So a request before the first record (a connection that broke, a transaction that had to end
first), and then one record for a topic made a moment ago, take the leaders of all other topics away. Their batches wait
until ``request_timeout_ms`` and then fail. Meanwhile the client asks without a pause, as it does while a partition has
no leader or nobody listens at the broker's address: thousands of requests and of lines in the log a second.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from aiokafka.client import AIOKafkaClient

LONGEST_PAUSE_S = 0.5
"""Between two requests of a client that keeps asking: a broker that is back is noticed so much later at most."""

TURN_S = 0.02
"""How long a client that asks too early waits for its answer, which is that nothing is new. aiokafka's sender sends
nothing to healthy partitions meanwhile, so it is short."""


class MetadataPace:
    """Whether a client may ask already: at once after a silence, and for other topics than the last time; while the
    asking goes on, after pauses that double.
    """

    def __init__(self, first_s: float, longest_s: float = LONGEST_PAUSE_S) -> None:
        """``first_s``: the shortest pause; ``longest_s`` the longest, where it is longer."""
        self._first_s = first_s
        self._longest_s = max(first_s, longest_s)
        self._pause_s = first_s
        self._at = float("-inf")
        self._topics: frozenset[str] | None = None
        self.found = False
        """Whether the last request was answered."""

    def may_ask(self, now_s: float, topics: Iterable[str]) -> bool:
        """Whether one may ask for ``topics`` at ``now_s`` (monotonic), who then does."""
        wanted, silent_s = frozenset(topics), now_s - self._at
        if wanted == self._topics and silent_s < self._pause_s:
            return False
        ceaseless = silent_s < 2 * self._pause_s
        self._pause_s = min(2 * self._pause_s, self._longest_s) if ceaseless else self._first_s
        self._at, self._topics = now_s, wanted
        return True


_paces: WeakKeyDictionary[AIOKafkaClient, MetadataPace] = WeakKeyDictionary()
_update = AIOKafkaClient._metadata_update
_wait_on = AIOKafkaClient._wait_on_metadata


def steady_metadata() -> None:
    """Have every client of aiokafka in this process keep the topics it writes to, and ask for them at a pace."""
    AIOKafkaClient._metadata_update = _paced_update
    AIOKafkaClient._wait_on_metadata = _remembered


async def _paced_update(client: AIOKafkaClient, cluster: Any, topics: Any) -> Any:
    if cluster is not client.cluster:  # somebody wants to know all topics, once
        return await _update(client, cluster, topics)
    pace = _paces.get(client)
    if pace is None:
        pace = _paces[client] = MetadataPace(client._retry_backoff)
    if not pace.may_ask(time.monotonic(), topics or ()):
        await asyncio.sleep(TURN_S)
        return pace.found
    pace.found = False
    pace.found = await _update(client, cluster, topics)
    return pace.found


async def _remembered(client: AIOKafkaClient, topic: str) -> Any:
    client._topics.add(topic)
    return await _wait_on(client, topic)
