"""Reads records of a topic again, as long as it exists: one of the same name may be another one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from headrace.schemas.kafka.topic_ids import topic_ids

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_RETRY_S = 1.0
"""Pause before records are read again that could not be read."""


class NotReadable(Exception):
    """A partition could not be read on."""


async def while_it_exists(
    bootstrap: str, topic: str, topic_id: str, read: Callable[[], Awaitable[ResultT]]
) -> ResultT | None:
    """Returns what ``read`` returns; ``None`` if the topic of the id ``topic_id`` was deleted. Tries again while Kafka
    does not answer, or ``read`` raises its errors or :class:`NotReadable`.
    """
    while True:
        try:
            if (await topic_ids(bootstrap, {topic})).get(topic) != topic_id:
                return None
            return await read()
        except (KafkaException, KafkaError, NotReadable) as error:
            log.warning("records of %s that must be read again are not readable, trying again: %s", topic, error)
            await asyncio.sleep(_RETRY_S)
