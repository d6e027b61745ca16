"""Settings of existing topics are changed on a real broker, and only those that headrace declares."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.errors import InvalidConfigurationError, KafkaTimeoutError
from click.testing import CliRunner

from headrace.deploy.commands.topics import command
from headrace.schemas.kafka import topic_settings
from headrace.schemas.kafka.topic_clock import set_clocks
from headrace.schemas.kafka.topic_settings import alter_topics, set_configs, settings_of
from headrace.schemas.topics import EVENTS, REWARDS, TOPICS

pytestmark = pytest.mark.kafka


async def test_existing_topics_get_the_declared_settings_and_keep_all_others(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, declared = {"segment.ms": "3600000"}, type(EVENTS).configs.fget
    assert declared is not None
    monkeypatch.setattr(type(EVENTS), "configs", property(lambda topic: declared(topic) | others))
    await set_configs(kafka, [replace(EVENTS, retention_ms=1_000)])
    monkeypatch.undo()
    assert await alter_topics(kafka, TOPICS) == {EVENTS.name: {"retention.ms": ("1000", str(EVENTS.retention_ms))}}
    assert await settings_of(kafka, [EVENTS], "segment.ms") == {EVENTS.name: "3600000"}
    assert await settings_of(kafka, [EVENTS], "retention.ms") == {EVENTS.name: str(EVENTS.retention_ms)}
    assert await alter_topics(kafka, TOPICS) == {}
    await set_configs(kafka, [EVENTS])


async def test_a_topic_that_does_not_exist_is_left_out(kafka: str) -> None:
    assert await alter_topics(kafka, [replace(REWARDS, name="nobody-made-this")]) == {}


def test_the_command_prints_what_it_changed(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = replace(REWARDS, retention_ms=90 * 24 * 3600 * 1000)
    monkeypatch.setattr("headrace.schemas.topics.TOPICS", (longer,))
    for expected in ("rewards: retention.ms -1 → 7776000000\n", "all existing topics have these settings\n"):
        done = CliRunner().invoke(command, ["--alter", "--kafka", kafka])
        assert done.exit_code == 0, done.output
        assert done.output.startswith(expected)
    monkeypatch.undo()
    assert CliRunner().invoke(command, ["--alter", "--kafka", kafka]).exit_code == 0


async def test_the_command_alters_only_the_topic_that_it_names(kafka: str) -> None:
    short = [replace(topic, retention_ms=3_600_000) for topic in (EVENTS, REWARDS)]
    await set_configs(kafka, short)
    try:
        done = await asyncio.to_thread(CliRunner().invoke, command, [REWARDS.name, "--alter", "--kafka", kafka])
        assert (done.exit_code, done.output) == (0, f"rewards: retention.ms 3600000 → {REWARDS.retention_ms}\n")
        assert await settings_of(kafka, [EVENTS], "retention.ms") == {EVENTS.name: "3600000"}
        refused = await asyncio.to_thread(CliRunner().invoke, command, ["rewardz", "--alter", "--kafka", kafka])
        assert refused.exit_code == 2
        assert await settings_of(kafka, [EVENTS], "retention.ms") == {EVENTS.name: "3600000"}
    finally:
        await set_configs(kafka, [EVENTS, REWARDS])


async def test_a_refused_value_is_an_error_and_what_was_given_stays(kafka: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="settings of rewards"):
        await alter_topics(kafka, [replace(REWARDS, retention_ms=-5)])
    assert await settings_of(kafka, [REWARDS], "retention.ms") == {REWARDS.name: str(REWARDS.retention_ms)}


async def test_a_setting_change_is_awaited_until_the_broker_applies_it(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded broker applies a change later than its controller acknowledges it."""
    describe, asked = topic_settings.describe, 0

    async def late(admin: Any, wanted: Any) -> dict[str, dict[str, str]]:
        nonlocal asked
        asked += 1
        return await describe(admin, wanted) if asked > 3 else {EVENTS.name: EVENTS.configs}

    monkeypatch.setattr(topic_settings, "describe", late)
    await set_configs(kafka, [replace(EVENTS, broker_time=False)])
    assert asked == 4
    monkeypatch.setattr(topic_settings, "IN_EFFECT_S", 0.1)
    asked = -1000
    with pytest.raises(KafkaTimeoutError, match="settings of events are not in effect"):
        await set_configs(kafka, [replace(EVENTS, broker_time=False)])
    monkeypatch.undo()
    await set_clocks(kafka)
