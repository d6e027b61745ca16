"""Whose clock a topic's timestamps are: the broker's where agents write, so that no agent's clock moves shared time.

    events, feedback, sdk-stats  LogAppendTime    the broker stamps what comes in
    what is derived of them      CreateTime       records bear the log time of what they were made of

A broker refuses records that bear a time more than an hour ahead of its own, unless it stamps them itself.

Topics that headrace creates are set up so; those of somebody else's cluster are looked at before a process starts.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaTimeoutError, for_code

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import TIMESTAMP_TYPE, TOPICS, Topic

_log = logging.getLogger(__name__)

OFFSETS_RETENTION = "offsets.retention.minutes"
"""Setting of a broker."""

SEEN_S = 30.0
"""A changed setting that the broker does not go by after so many seconds is an error."""


class WrongClockError(OperatorError, ValueError):
    """A topic's timestamps are not whose they must be; the message has the command that mends it."""


async def check_clocks(bootstrap: str, topics: Iterable[Topic], *, override: str) -> None:
    """Raise :class:`WrongClockError` where one of ``topics`` has another ``message.timestamp.type`` than it must have.

    ``override`` names the option that goes on nevertheless. Where the cluster does not let us look, a warning is
    logged.
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
        commands = "\n".join(mending(bootstrap, topic) for topic, _ in wrong)
        names = ", ".join(f"{topic.name} must have {TIMESTAMP_TYPE}={wanted}" for topic, wanted in wrong)
        raise WrongClockError(
            f"{names}: with producers' clocks one agent could let other agents' trajectories time out. Set it "
            f"(nothing is lost, and it can be done while everything runs):\n{commands}\nor, where only trusted "
            f"producers write, set {override}=true."
        )


def mending(bootstrap: str, topic: Topic) -> str:
    """The command of Kafka's own tools that sets the clock of ``topic``."""
    setting = f"{TIMESTAMP_TYPE}={topic.configs[TIMESTAMP_TYPE]}"
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        f"--entity-name {topic.name} --add-config {setting}"
    )


async def timestamp_types(bootstrap: str, topics: Iterable[Topic]) -> dict[str, str | None]:
    """``message.timestamp.type`` by topic; ``None`` where the cluster does not say."""
    async with open_admin(bootstrap) as admin:
        described = await _describe(admin, {topic.name: [TIMESTAMP_TYPE] for topic in topics})
    return {name: values.get(TIMESTAMP_TYPE) for name, values in described.items()}


async def _describe(admin: AIOKafkaAdminClient, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Values of the ``wanted`` settings by topic, as the broker that was asked knows them; without what it refuses."""
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(settings, "")) for name, settings in wanted.items()
    ]
    responses: list[Any] = await admin.describe_configs(resources)
    found: dict[str, dict[str, str]] = {}
    for response in responses:
        for code, message, _, name, entries in response.resources:
            if code:
                _log.warning("settings of %s: %s %s", name, for_code(code).__name__, message or "")
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def offsets_retention_minutes(bootstrap: str) -> int | None:
    """For how long a broker remembers the offsets of a group without members; ``None`` where it does not say."""
    async with open_admin(bootstrap) as admin:
        broker = str(next(iter(admin._client.cluster.brokers())).nodeId)
        resource = ConfigResource(ConfigResourceType.BROKER, broker, {OFFSETS_RETENTION: ""})
        responses: list[Any] = await admin.describe_configs([resource])
    values = {entry[0]: entry[1] for response in responses for each in response.resources for entry in each[4]}
    return int(values[OFFSETS_RETENTION]) if OFFSETS_RETENTION in values else None


async def set_clocks(bootstrap: str, topics: Iterable[Topic] = TOPICS) -> None:
    """Give those of the existing ``topics`` another clock whose timestamps are not whose they must be."""
    wanted = list(topics)
    found = await timestamp_types(bootstrap, wanted)
    wrong = [topic for topic in wanted if found.get(topic.name) not in (None, topic.configs[TIMESTAMP_TYPE])]
    if wrong:
        await set_configs(bootstrap, wrong)


async def set_configs(bootstrap: str, topics: Iterable[Topic]) -> None:
    """Give existing ``topics`` the settings that headrace creates them with; others of theirs go back to defaults.

    Returns when the broker goes by them: Kafka's controller acknowledges a change before the brokers have read it.
    Raises Kafka's error for a refused change, ``KafkaTimeoutError`` where a change is not seen within ``SEEN_S``.
    """
    wanted = {topic.name: topic.configs for topic in topics}
    async with open_admin(bootstrap) as admin:
        responses: list[Any] = await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, configs) for name, configs in wanted.items()]
        )
        for response in responses:
            for code, message, _, name in response.resources:
                if code:
                    raise for_code(code)(f"settings of {name}: {message or ''}")
        deadline = time.monotonic() + SEEN_S
        while await _describe(admin, wanted) != wanted:
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"changed settings of {', '.join(wanted)} are not in force after {SEEN_S:g} s")
            await asyncio.sleep(0.05)
