"""A replay of a run with a hack computes the readings and alerts that the live processors wrote."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from headrace.deploy.watching.live_plant import plant_live
from headrace.deploy.watching.plant import Plan
from headrace.schemas.envelope import TIME
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.watch import Lane, Readings
from headrace.schemas.side_topics import REFERENCES, ReplayStage
from headrace.schemas.topics import ALERTS, MONITORS
from headrace.streams.replay.run import ReplayConfig, run_replay
from headrace.streams.watch.planted.hacks import HACKS
from tests.deploy.commands.test_dead_letters import assembling
from tests.deploy.processes.test_topology_runs import behind
from tests.streams.replay.test_run import Stored, by_id, payload, same_but, side, stored
from tests.streams.test_workers import worker

pytestmark = pytest.mark.kafka

BY_VERSION = (Lane.ATTEMPT, Lane.INPUT, Lane.REWARD)
"""Lanes whose windows are versions, here. Fates and feedback are divided by arrival, which a replay has in stream
time."""


def test_a_replay_computes_the_readings_and_alerts_of_the_live_run(kafka: str, tmp_path: Path) -> None:
    with assembling(kafka), worker(kafka, tmp_path):
        plant_live(kafka, Plan(HACKS["clarifying-questions"], honest=26, steps=24))
        asyncio.run(until_all_is_processed(kafka))
    live_readings, live_alerts = written(asyncio.run(stored(kafka, MONITORS))), asyncio.run(stored(kafka, ALERTS))
    assert {each.kind for each in map(payload, live_alerts) if isinstance(each, Alert)} >= {
        "monitor_few_calls",
        "monitor_talks",
    }
    for stage in (ReplayStage.TRAJECTORIES, ReplayStage.EVENTS):
        asyncio.run(run_replay(ReplayConfig(kafka, str(stage), stage)))
        readings = written(asyncio.run(side(kafka, MONITORS, str(stage))))
        for lane in BY_VERSION:
            assert len(readings[lane]) > 40
            assert told(readings[lane]) == told(live_readings[lane]), lane
        assert len(readings[Lane.FATE]) == len(live_readings[Lane.FATE]) > 0
        assert Lane.FEEDBACK not in readings, "no reward uses it, so the replay reads none"
        assert told(asyncio.run(side(kafka, ALERTS, str(stage)))) == told(live_alerts)


async def until_all_is_processed(kafka: str) -> None:
    """Wait until no processor has a record left, measured twice in a row: one measurement queries one group after the
    other. Fates come last, after the windows that the plant waits for."""
    async with asyncio.timeout(120):
        quiet = 0
        while quiet < 2:
            quiet = 0 if await behind(kafka) else quiet + 1


def written(found: list[Stored]) -> dict[Lane, list[Stored]]:
    """The records of ``monitors`` by lane."""
    lanes: dict[Lane, list[Stored]] = {}
    for each in found:
        readings = payload(each)
        assert isinstance(readings, Readings)
        lanes.setdefault(readings.lane, []).append(each)
    return lanes


def told(found: list[Stored]) -> dict[str, object]:
    """Each record by its id, without the time of the observation that completed its window: it is any of the next
    version."""
    named = by_id(found)
    assert len(named) == len(found), Counter(each.headers["ce_id"] for each in found).most_common(1)
    return {name: same_but(each, without=(REFERENCES, TIME)) for name, each in named.items()}
