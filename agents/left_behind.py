"""Sends what ended processes left on disk, before their successor reads the log: their events belong to it.

await send_left_behind(config)   →  12, the number of events that are in Kafka now

A :class:`~headrace.agents.sdk.Headrace` does so by itself some time after its first event. That is too late for a
process that continues trajectories by the log.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaProducer

from headrace.agents.counters import DropReason
from headrace.agents.delivery import REFUSALS, check_topic
from headrace.agents.sender_config import SenderConfig
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss
from headrace.agents.spool_segments import Taken
from headrace.schemas.kafka.clients import open_producer

log = logging.getLogger(__name__)

AT_ONCE, AT_ONCE_BYTES = 1_000, 8 * 1024 * 1024
"""Events that are sent before their acknowledgement is awaited."""


def _log_loss(reason: DropReason, why: str, events: int) -> None:
    log.warning("%d events that an ended process left are lost (%s): %s", events, reason, why)


async def send_left_behind(config: SenderConfig, on_loss: Callable[[DropReason, str, int], None] = _log_loss) -> int:
    """Send the events in the spool's folder that no living process owns, in their order, and return their number.

    ``on_loss`` is called with the number of events that are lost and why: of a file that cannot be read, and what is
    refused in any case (``REFUSALS``, :func:`~headrace.agents.delivery.check_topic`): else no later process could
    start. Raises Kafka's error if it does not answer, or refuses an event for another reason; then the rest stays on
    disk. A folder that cannot be read is logged.
    """
    if config.spool_folder is None or not config.spool_bytes:
        return 0

    def note_damage(path: str, loss: Loss) -> None:
        on_loss(
            DropReason.SPOOL_DAMAGED, f"{path}: {loss.size:,} bytes at {loss.offset:,} cannot be read", loss.records
        )

    spool, sent = Spool(config.spool_folder, config.spool_bytes, config.cluster, note_damage), 0
    try:
        if not await asyncio.to_thread(spool.adopt):
            return 0
        async with open_producer(config.bootstrap, **config.kafka_options) as producer:
            while await asyncio.to_thread(spool.adopt):  # the next set, once one is sent
                taken = await asyncio.to_thread(spool.take_adopted, AT_ONCE, AT_ONCE_BYTES)
                acknowledged = [await _begin_to_send(producer, each) for each in taken]
                for each, future in zip(taken, acknowledged, strict=True):
                    try:
                        await future
                        sent += 1
                    except REFUSALS as error:
                        on_loss(DropReason.REFUSED, f"topic {each.record.topic}: {error!r}", 1)
                    spool.done(each.segment)
    except OSError as error:
        log.warning("what ended processes left in %s was not sent: %s", config.spool_folder, error)
    finally:
        await asyncio.to_thread(spool.close)
    log.info("%d events that ended processes left in %s are sent", sent, config.spool_folder)
    return sent


async def _begin_to_send(producer: AIOKafkaProducer, taken: Taken) -> "Future[Any]":
    """Return the future of the broker's answer; a refusal of the client is one, too."""
    record = taken.record
    answer: Future[Any]
    try:
        check_topic(record.topic)
        answer = await producer.send(record.topic, record.value, record.key, headers=list(record.headers))
    except REFUSALS as error:
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(error)
    return answer
