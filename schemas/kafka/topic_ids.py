"""Ids of topics: a topic that is deleted and created again has another one, and its offsets mean other records."""

import asyncio
import logging
from collections.abc import Collection

from aiokafka.errors import KafkaTimeoutError
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from headrace.schemas.kafka.security import librdkafka_security

_log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Limit for the broker's answer."""


async def topic_ids(bootstrap: str, names: Collection[str]) -> dict[str, str]:
    """Return the id of each of ``names`` that exists, by name.

    Raises ``KafkaTimeoutError`` if the broker does not answer for a topic within :data:`ANSWER_S` seconds.
    """
    return await asyncio.to_thread(_topic_ids, bootstrap, names) if names else {}


def _topic_ids(bootstrap: str, names: Collection[str]) -> dict[str, str]:
    # Errors are raised; librdkafka would print lost connections to stderr as well.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": "2", **librdkafka_security()}, logger=_log)
    found = {}
    for name, answer in admin.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER_S).items():
        try:
            found[name] = str(answer.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaTimeoutError(
                    f"the broker did not describe the topic {name}: {error.args[0].str()}"
                ) from error
    return found
