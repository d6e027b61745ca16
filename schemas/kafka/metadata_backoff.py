"""Metadata of topics and leaders in aiokafka clients: a producer's topics stay known, and requests are rate-limited.

    before the first record: all topics ──▶ send(unknown topic): requests that topic, forgets the others
                                             └─▶ batches for the others have no leader: requests again without pause

A client of aiokafka (0.13) requests metadata of all topics until it has a list of topics, and a producer adds a topic
to the list only if the topic is unknown. If a client requests metadata before its first record (because a connection
broke, or a transaction had to end first) and then sends a record to a topic that was just created, it loses the leaders
of all other topics. Their batches wait for ``request_timeout_ms`` and then fail. Meanwhile the client sends requests
without pause, as it does while a partition has no leader or no broker listens at the address: thousands of requests and
of log lines per second.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from aiokafka.client import AIOKafkaClient

LONGEST_PAUSE_S = 0.5
"""Longest pause between two requests of a client that keeps requesting; a client notices a recovered broker at most
this much later."""

TURN_S = 0.02
"""How long a client that requests too early waits before it gets the previous answer. It is short because aiokafka's
sender sends nothing to healthy partitions meanwhile."""


class MetadataBackoff:
    """Decides whether a client may request metadata now: immediately after a period without requests or for other
    topics than before, and otherwise after pauses that double.
    """

    def __init__(self, first_s: float, longest_s: float = LONGEST_PAUSE_S) -> None:
        """``first_s``: shortest pause; ``longest_s``: longest pause, at least ``first_s``."""
        self._first_s = first_s
        self._longest_s = max(first_s, longest_s)
        self._pause_s = first_s
        self._at = float("-inf")
        self._topics: frozenset[str] | None = None
        self.found = False
        """Whether the last request was answered."""

    def may_request(self, now_s: float, topics: Iterable[str]) -> bool:
        """Return whether the caller may request ``topics`` at ``now_s`` (monotonic). If so, the caller must do it."""
        wanted, idle_s = frozenset(topics), now_s - self._at
        if wanted == self._topics and idle_s < self._pause_s:
            return False
        repeated = idle_s < 2 * self._pause_s
        self._pause_s = min(2 * self._pause_s, self._longest_s) if repeated else self._first_s
        self._at, self._topics = now_s, wanted
        return True


_backoffs: WeakKeyDictionary[AIOKafkaClient, MetadataBackoff] = WeakKeyDictionary()
_update = AIOKafkaClient._metadata_update
_wait_on = AIOKafkaClient._wait_on_metadata


def limit_metadata_requests() -> None:
    """Make every aiokafka client in this process keep the topics it writes to and limit its metadata requests."""
    AIOKafkaClient._metadata_update = _limited_update
    AIOKafkaClient._wait_on_metadata = _remember_topic


async def _limited_update(client: AIOKafkaClient, cluster: Any, topics: Any) -> Any:
    if cluster is not client.cluster:  # a single request for all topics
        return await _update(client, cluster, topics)
    backoff = _backoffs.get(client)
    if backoff is None:
        backoff = _backoffs[client] = MetadataBackoff(client._retry_backoff)
    if not backoff.may_request(time.monotonic(), topics or ()):
        await asyncio.sleep(TURN_S)
        return backoff.found
    backoff.found = False
    backoff.found = await _update(client, cluster, topics)
    return backoff.found


async def _remember_topic(client: AIOKafkaClient, topic: str) -> Any:
    client._topics.add(topic)
    return await _wait_on(client, topic)
