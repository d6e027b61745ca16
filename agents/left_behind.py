"""Sends what ended processes left on disk, before their successor reads the log: their events belong to it.

await send_left_behind(config)   →  12, the number of events that are in Kafka now

A :class:`~headrace.agents.sdk.Headrace` does so by itself some time after its first event. That is too late for a
process that continues trajectories by the log.
"""

import asyncio
import logging
from asyncio import Future
from typing import Any

from headrace.agents.sender_config import SenderConfig
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss
from headrace.schemas.kafka.clients import open_producer

log = logging.getLogger(__name__)

AT_ONCE, AT_ONCE_BYTES = 1_000, 8 * 1024 * 1024
"""Events that are sent before their acknowledgement is awaited."""


async def send_left_behind(config: SenderConfig) -> int:
    """Send the events in the spool's folder that no living process owns, in their order, and return their number.

    Raises Kafka's error if it refuses one, or does not answer; then the rest stays on disk. A folder that cannot be
    read is logged.
    """
    if config.spool_folder is None or not config.spool_bytes:
        return 0
    spool, sent = Spool(config.spool_folder, config.spool_bytes, config.cluster, _note_loss), 0
    try:
        if not await asyncio.to_thread(spool.adopt):
            return 0
        async with open_producer(config.bootstrap, **config.kafka_options) as producer:
            while await asyncio.to_thread(spool.adopt):  # the next set, once one is sent
                taken = await asyncio.to_thread(spool.take_adopted, AT_ONCE, AT_ONCE_BYTES)
                acknowledged: list[Future[Any]] = [
                    await producer.send(
                        each.record.topic, each.record.value, each.record.key, headers=list(each.record.headers)
                    )
                    for each in taken
                ]
                for each, future in zip(taken, acknowledged, strict=True):
                    await future
                    spool.done(each.segment)
                sent += len(taken)
    except OSError as error:
        log.warning("what ended processes left in %s was not sent: %s", config.spool_folder, error)
    finally:
        await asyncio.to_thread(spool.close)
    log.info("%d events that ended processes left in %s are sent", sent, config.spool_folder)
    return sent


def _note_loss(path: str, loss: Loss) -> None:
    log.warning("%s: %d bytes at %d cannot be read", path, loss.size, loss.offset)
