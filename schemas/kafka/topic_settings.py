"""Reads and changes the settings of existing topics.

altered = await alter_topics("localhost:9092", [EVENTS])
{"events": {"retention.ms": ("604800000", "2592000000")}}
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaTimeoutError, for_code

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.topics import TOPICS, Topic

_log = logging.getLogger(__name__)

IN_EFFECT_S = 30.0
"""A changed setting that is not in effect after this many seconds is an error."""

_OF_TOPIC = 1
"""Source of a setting that was given to the topic itself, in Kafka's protocol."""

Changes: TypeAlias = dict[str, dict[str, tuple[str | None, str]]]
"""By topic and setting: the value before (``None``: the broker's default applied) and the new one."""


async def alter_topics(bootstrap: str, topics: Iterable[Topic] = TOPICS) -> Changes:
    """Give existing ``topics`` the settings with which headrace creates them, and keep all others that they were given.

    Returns what changed once it is in effect; topics that do not exist are left out. Raises as :func:`set_configs`.
    """
    wanted = {topic.name: topic.configs for topic in topics}
    async with open_admin(bootstrap) as admin:
        given = await _given(admin, wanted)
    changes: Changes = {}
    for name, own in given.items():
        changed = {setting: (own.get(setting), new) for setting, new in wanted[name].items() if own.get(setting) != new}
        if changed:
            changes[name] = changed
    await _alter(bootstrap, {name: given[name] | wanted[name] for name in changes})
    return changes


async def set_configs(bootstrap: str, topics: Iterable[Topic]) -> None:
    """Give existing ``topics`` the settings with which headrace creates them; their other settings return to defaults.

    Returns when the settings are in effect: Kafka's controller acknowledges a change before the brokers apply it.
    Raises Kafka's error for a refused change, and ``KafkaTimeoutError`` if a change is not in effect within
    ``IN_EFFECT_S``.
    """
    await _alter(bootstrap, {topic.name: topic.configs for topic in topics})


async def settings_of(bootstrap: str, topics: Iterable[Topic], setting: str) -> dict[str, str | None]:
    """Return ``setting`` by topic; ``None`` if the cluster does not report it."""
    async with open_admin(bootstrap) as admin:
        described = await describe(admin, {topic.name: [setting] for topic in topics})
    return {name: values.get(setting) for name, values in described.items()}


async def describe(admin: AIOKafkaAdminClient, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Return the values of the ``wanted`` settings by topic, as known to the broker that answers; settings that it
    refuses to report are missing."""
    found: dict[str, dict[str, str]] = {}
    for name, entries in await _entries(admin, wanted):
        found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _given(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return all settings that existing topics were given, by topic."""
    found: dict[str, dict[str, str]] = {}
    for name, entries in await _entries(admin, dict.fromkeys(names)):
        if entries:
            found[name] = {entry[0]: entry[1] for entry in entries if entry[3] == _OF_TOPIC}
    return found


async def _entries(
    admin: AIOKafkaAdminClient, wanted: Mapping[str, Iterable[str] | None]
) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return the entries of the answer by topic. ``wanted``: the settings of each; ``None``: all."""
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, name, None if settings is None else dict.fromkeys(settings, ""))
        for name, settings in wanted.items()
    ]
    responses: list[Any] = await admin.describe_configs(resources)
    found = []
    for response in responses:
        for code, message, _, name, entries in response.resources:
            if code:
                _log.warning("settings of %s: %s %s", name, for_code(code).__name__, message or "")
            found.append((name, entries))
    return found


async def _alter(bootstrap: str, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Replace all settings of topics, and wait until that is in effect."""
    if not wanted:
        return
    async with open_admin(bootstrap) as admin:
        responses: list[Any] = await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, dict(configs)) for name, configs in wanted.items()]
        )
        for response in responses:
            for code, message, _, name in response.resources:
                if code:
                    raise for_code(code)(f"settings of {name}: {message or ''}")
        deadline = time.monotonic() + IN_EFFECT_S
        while await describe(admin, wanted) != wanted:
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(
                    f"changed settings of {', '.join(wanted)} are not in effect after {IN_EFFECT_S:g} s"
                )
            await asyncio.sleep(0.05)
