"""The clock of a topic's timestamps. Topics that agents write use the broker's clock, so that no agent's clock can move
the stream time that all agents share.

    events, feedback, sdk-stats  LogAppendTime    the broker stamps records on arrival
    derived records              CreateTime       records carry the stream time of their inputs

A broker refuses records with a time more than an hour ahead of its own clock, unless it stamps them itself.

headrace creates its topics with these settings. On a cluster with existing topics, processes check the settings at
start.
"""

import logging
from collections.abc import Iterable
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.kafka.topic_settings import alter_topics, settings_of
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import TIMESTAMP_TYPE, TOPICS, Topic

_log = logging.getLogger(__name__)

OFFSETS_RETENTION = "offsets.retention.minutes"
"""Broker setting: retention of committed offsets."""


class WrongClockError(OperatorError, ValueError):
    """A topic's timestamps use the wrong clock; the message contains the command that fixes it."""


async def check_clocks(bootstrap: str, topics: Iterable[Topic], *, override: str) -> None:
    """Raise :class:`WrongClockError` if one of ``topics`` has the wrong ``message.timestamp.type``.

    ``override`` is the name of the option that skips this check, for the message. If the cluster does not permit
    reading the setting, a warning is logged.
    """
    topics, wrong = list(topics), []
    found = await timestamp_types(bootstrap, topics)
    for topic in topics:
        wanted = topic.configs[TIMESTAMP_TYPE]
        if found.get(topic.name) is None:
            _log.warning("%s of %s cannot be read: it must be %s", TIMESTAMP_TYPE, topic.name, wanted)
        elif found[topic.name] != wanted:
            wrong.append((topic, wanted))
    if wrong:
        commands = "\n".join(repair_command(bootstrap, topic) for topic, _ in wrong)
        names = ", ".join(f"{topic.name} must have {TIMESTAMP_TYPE}={wanted}" for topic, wanted in wrong)
        raise WrongClockError(
            f"{names}: with producers' clocks, one agent could make other agents' trajectories time out. Change the "
            f"setting (nothing is lost, and all processes may keep running):\n{commands}\nor, if only trusted "
            f"producers write, set {override}=true."
        )


def repair_command(bootstrap: str, topic: Topic) -> str:
    """Return the command of Kafka's own tools that sets the clock of ``topic``."""
    setting = f"{TIMESTAMP_TYPE}={topic.configs[TIMESTAMP_TYPE]}"
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        f"--entity-name {topic.name} --add-config {setting}"
    )


async def timestamp_types(bootstrap: str, topics: Iterable[Topic]) -> dict[str, str | None]:
    """Return ``message.timestamp.type`` by topic; ``None`` if the cluster does not report it."""
    return await settings_of(bootstrap, topics, TIMESTAMP_TYPE)


async def offsets_retention_minutes(bootstrap: str) -> int | None:
    """Return how many minutes a broker keeps the offsets of a group without members; ``None`` if it does not report
    it."""
    async with open_admin(bootstrap) as admin:
        broker = str(next(iter(admin._client.cluster.brokers())).nodeId)
        resource = ConfigResource(ConfigResourceType.BROKER, broker, {OFFSETS_RETENTION: ""})
        responses: list[Any] = await admin.describe_configs([resource])
    values = {entry[0]: entry[1] for response in responses for each in response.resources for entry in each[4]}
    return int(values[OFFSETS_RETENTION]) if OFFSETS_RETENTION in values else None


async def set_clocks(bootstrap: str, topics: Iterable[Topic] = TOPICS) -> None:
    """Set the clock of those existing ``topics`` that use the wrong one."""
    wanted = list(topics)
    found = await timestamp_types(bootstrap, wanted)
    wrong = [topic for topic in wanted if found.get(topic.name) not in (None, topic.configs[TIMESTAMP_TYPE])]
    if wrong:
        await alter_topics(bootstrap, wrong)
