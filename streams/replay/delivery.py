"""Records sent through librdkafka, which batches, compresses and retries on threads of its own.

Records of a partition arrive in the order in which they were sent, each once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.schemas.kafka.clients import COMPRESSION, MAX_REQUEST_BYTES
from headrace.schemas.kafka.security import librdkafka_security
from headrace.schemas.kafka.sending import OutgoingRecord
from headrace.schemas.kafka.waits import STOP_S

logger = logging.getLogger(__name__)

UNACKNOWLEDGED = 5_000
"""Largest number of unacknowledged records: no more than these are missing after an interruption."""
UNACKNOWLEDGED_KB = 64 * 1024
"""Largest size of unacknowledged keys, values and headers, in KiB."""
_WAIT_S = 0.1
_POLL_EVERY = 100
"""Number of records between two checks for delivery errors."""


class DeliveryFailed(RuntimeError):
    """A record could not be written; the message gives the reason."""


class Delivery:
    """Sends records, a bounded number of them ahead of their acknowledgements; made by :func:`open_delivery`."""

    def __init__(self, producer: Producer, failures: list[KafkaError]) -> None:
        """``failures``: where the errors of ``producer`` and of its records go."""
        self._producer = producer
        self._failures = failures
        self._sent = 0

    async def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Send ``records``, each once there is room for it. Each has a partition, and a timestamp that is not limited;
        0 becomes now.

        Raises :class:`DeliveryFailed` if an earlier record could not be written.
        """
        for topic, key, value, headers, timestamp_ms, partition in records:
            assert partition is not None, "the partition is that of the record that this one repeats"
            assert timestamp_ms is not None, "the stream time is that of the record that this one repeats"
            while True:
                self._check()
                try:
                    self._producer.produce(
                        topic,
                        value,
                        key,
                        partition=partition,
                        timestamp=timestamp_ms,
                        headers=[*headers],
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
        """Wait until every record is acknowledged. Raises ``DeliveryFailed`` if one could not be written."""
        while await asyncio.to_thread(self.poll_all, _WAIT_S):
            self._check()
        self._check()

    def poll_all(self, wait_s: float) -> int:
        """Wait up to ``wait_s`` seconds until all records are acknowledged. Returns how many are not."""
        try:
            return int(self._producer.flush(wait_s))
        except KafkaException as error:  # fatal
            self._failures.append(error.args[0])
            return 0

    def _check(self) -> None:
        if self._failures:
            raise DeliveryFailed(f"a record could not be written: {self._failures[0].str()}")


@asynccontextmanager
async def open_delivery(bootstrap: str) -> AsyncIterator[Delivery]:
    """Opens a :class:`Delivery` to ``bootstrap``. On exit it is flushed; after an exception, for a few seconds."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        # Outages are waited for, and nothing is sent after a record that could not be written: a side topic always
        # holds a prefix, which a rerun completes.
        "message.timeout.ms": 0,
        "enable.gapless.guarantee": True,
        "compression.type": COMPRESSION,
        "linger.ms": 5,
        "batch.size": 1024 * 1024,
        "message.max.bytes": MAX_REQUEST_BYTES,
        "queue.buffering.max.messages": UNACKNOWLEDGED,
        "queue.buffering.max.kbytes": UNACKNOWLEDGED_KB,
        # Fatal errors are raised; this process's other clients log once a minute that the broker is unavailable.
        "log_level": 2,
        **librdkafka_security(),
    }
    failures: list[KafkaError] = []
    # Only errors: a call for each record that was written would take as long as sending it.
    settings["delivery.report.only.error"] = True
    settings["on_delivery"] = lambda error, _: failures.append(error)
    # Without a callback a fatal error would be raised by the next call that checks acknowledgements.
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
