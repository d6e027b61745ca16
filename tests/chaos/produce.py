"""Send the load on schedule, from several producers at the same time."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.topics import EVENTS
from tests.chaos.load import Sending

_QUEUE = 500
_UNACKNOWLEDGED = 2000
_NEVER_EXPIRES_MS = 600_000
"""A producer waits for an unavailable broker: an event lost before the log would not be the assembler's fault."""


class Producers:
    """Sends records, and counts the acknowledged ones."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.acknowledged = 0
        """Records that the broker has acknowledged."""
        self._bootstrap = bootstrap
        self._queues: list[asyncio.Queue[Sending | None]] = [asyncio.Queue(_QUEUE) for _ in range(number)]

    async def send(self, sendings: Iterable[Sending]) -> None:
        """Send all, each at its time or as soon afterwards as the broker accepts it; returns once all are acknowledged.

        Raises the client's error if a record could not be delivered.
        """
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                group.create_task(self._produce(queue))
            begin = time.monotonic()
            for number, sending in enumerate(sendings):
                early_s = sending.at_s - (time.monotonic() - begin)
                if early_s > 0.005:
                    await asyncio.sleep(early_s)
                elif number % 50 == 0:
                    await asyncio.sleep(0)
                await self._queues[sending.producer].put(sending)
            for queue in self._queues:
                await queue.put(None)

    async def _produce(self, queue: asyncio.Queue[Sending | None]) -> None:
        waiting: deque[asyncio.Future[object]] = deque()
        async with open_producer(self._bootstrap, request_timeout_ms=_NEVER_EXPIRES_MS) as producer:
            while sending := await queue.get():
                waiting.append(await self._send(producer, sending))
                while waiting and (waiting[0].done() or len(waiting) > _UNACKNOWLEDGED):
                    await waiting.popleft()
                    self.acknowledged += 1
            for acknowledgement in waiting:
                await acknowledgement
                self.acknowledged += 1

    async def _send(self, producer: AIOKafkaProducer, sending: Sending) -> "asyncio.Future[object]":
        record = sending.record
        handed: asyncio.Future[object] = await producer.send(
            EVENTS.name, key=record.key, value=record.value, headers=list(record.headers)
        )
        return handed
