"""aiokafka's knowledge of topics and leaders: a producer's topics stay in it, and it is asked for at a bounded pace.

    bootstrap: every topic ──▶ send(new topic): asks for that one, forgets the others ──▶ batches of theirs: no leader
                                                                                          └─▶ asks again, at once, ...

A producer of aiokafka (0.13) adds a topic to those that it asks for only where it did not know it, so the first request
after its start forgets topics that have batches waiting. They wait until ``request_timeout_ms`` and then fail, and
meanwhile it asks again and again without a pause, as it does while a partition has no leader or nobody listens at the
broker's address: thousands of requests and of lines in the log a second.
"""

import asyncio
import time
from typing import Any
from weakref import WeakKeyDictionary

from aiokafka.client import AIOKafkaClient

LONGEST_PAUSE_S = 0.5
"""Between two requests of a client that keeps asking: a broker that is back is noticed so much later at most."""


class Pace:
    """When somebody may ask again: at once after a silence; while the asking goes on, after pauses that double."""

    def __init__(self, first_s: float, longest_s: float = LONGEST_PAUSE_S) -> None:
        """``first_s``: the shortest pause."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = first_s
        self._at = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Seconds to wait, for one who wants to ask at ``now_s`` (monotonic) and will."""
        silent_s = now_s - self._at
        if silent_s > 2 * self._pause_s:
            self._pause_s = self._first_s
        wait_s = max(0.0, self._pause_s - silent_s)
        if wait_s:
            self._pause_s = min(2 * self._pause_s, self._longest_s)
        self._at = now_s + wait_s
        return wait_s


_paces: WeakKeyDictionary[AIOKafkaClient, Pace] = WeakKeyDictionary()
_update = AIOKafkaClient._metadata_update
_wait_on = AIOKafkaClient._wait_on_metadata


def steady_metadata() -> None:
    """Have every client of aiokafka in this process keep the topics it writes to, and ask for them at a pace."""
    AIOKafkaClient._metadata_update = _paced_update
    AIOKafkaClient._wait_on_metadata = _remembered


async def _paced_update(client: AIOKafkaClient, cluster: Any, topics: Any) -> Any:
    pace = _paces.get(client)
    if pace is None:
        pace = _paces[client] = Pace(client._retry_backoff)
    if wait_s := pace.wait_s(time.monotonic()):
        await asyncio.sleep(wait_s)
    return await _update(client, cluster, topics)


async def _remembered(client: AIOKafkaClient, topic: str) -> Any:
    client._topics.add(topic)
    return await _wait_on(client, topic)
