"""Records sent through librdkafka, which batches, compresses and retries on threads of its own.

Records of a partition arrive in the order in which they were sent, each once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.schemas.envelope import Headers
from headrace.schemas.kafka.clients import COMPRESSION, MAX_REQUEST_BYTES
from headrace.schemas.kafka.waits import STOP_S

logger = logging.getLogger(__name__)

_UNACKNOWLEDGED = 5_000
"""Records sent and not acknowledged, at most: an interrupted replay lacks no more of what it had written."""
_UNACKNOWLEDGED_KB = 64 * 1024
"""The same in KiB of keys, values and headers."""
_WAIT_S = 0.1
_POLL_EVERY = 100
"""Acknowledgements are looked at once in so many records."""


class DeliveryFailed(RuntimeError):
    """A record could not be written; the message says why."""


class Delivery:
    """Sends records, a bounded number of them ahead of their acknowledgements; made by :func:`open_delivery`."""

    def __init__(self, producer: Producer, failures: list[KafkaError]) -> None:
        """``failures``: where the producer's fatal errors go."""
        self._producer = producer
        self._failures = failures
        self._sent = 0

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> None:
        """Send a record, once there is room for it. ``timestamp_ms``: Unix milliseconds, from 1 (0 would become now).

        Raises :class:`DeliveryFailed` where a record that was sent before could not be written.
        """
        while True:
            self._check()
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition=partition,
                    headers=[*headers],
                    timestamp=timestamp_ms,
                    on_delivery=self._acknowledged,
                )
                break
            except KafkaException as error:  # fatal: an earlier record could not be written
                raise DeliveryFailed(f"a record could not be written: {error.args[0].str()}") from error
            except BufferError:
                await asyncio.to_thread(self._producer.poll, _WAIT_S)
        self._sent += 1
        if self._sent % _POLL_EVERY == 0:
            self._producer.poll(0)

    async def flush(self) -> None:
        """Wait until every record is acknowledged; raises ``DeliveryFailed`` where one could not be written."""
        while await asyncio.to_thread(self.poll_all, _WAIT_S):
            self._check()
        self._check()

    def poll_all(self, wait_s: float) -> int:
        """Wait up to ``wait_s`` seconds until everything is acknowledged; returns how many records are not."""
        try:
            return int(self._producer.flush(wait_s))
        except KafkaException as error:  # fatal
            self._failures.append(error.args[0])
            return 0

    def _acknowledged(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _check(self) -> None:
        if self._failures:
            raise DeliveryFailed(f"a record could not be written: {self._failures[0].str()}")


@asynccontextmanager
async def open_delivery(bootstrap: str) -> AsyncIterator[Delivery]:
    """A :class:`Delivery` to ``bootstrap``. At the end everything is flushed, after an exception for a few seconds."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        # An outage is waited for, and nothing is sent after a record that could not be written: what is there is always
        # a prefix, which a rerun completes.
        "message.timeout.ms": 0,
        "enable.gapless.guarantee": True,
        "compression.type": COMPRESSION,
        "linger.ms": 5,
        "batch.size": 1024 * 1024,
        "message.max.bytes": MAX_REQUEST_BYTES,
        "queue.buffering.max.messages": _UNACKNOWLEDGED,
        "queue.buffering.max.kbytes": _UNACKNOWLEDGED_KB,
        # What goes wrong for good is raised; that the broker is away this process's other clients log once a minute.
        "log_level": 2,
    }
    failures: list[KafkaError] = []
    # Without a callback a fatal error would be raised by whichever call looks at acknowledgements next.
    settings["error_cb"] = lambda error: failures.append(error) if error.fatal() else None
    producer = Producer(settings, logger=logger)
    delivery = Delivery(producer, failures)
    try:
        yield delivery
        await delivery.flush()
    except BaseException:
        if await asyncio.to_thread(delivery.poll_all, STOP_S):
            logger.debug("the broker did not acknowledge everything")
        raise
