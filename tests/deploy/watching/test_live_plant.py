"""Hacks planted into running processors on a real broker: events in, and an alert with guilty attempts out."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.deploy.commands.watch import command
from headrace.deploy.errors import StackError
from headrace.deploy.watching.alerts import read_episodes
from headrace.deploy.watching.episodes import EpisodeStatus
from headrace.deploy.watching.live_plant import plant_live
from headrace.deploy.watching.plant import Plan
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, REJECTED, TRAINING, TRAJECTORIES, Topic
from headrace.schemas.wire import decode
from headrace.streams.watch.planted.hacks import HACKS
from tests.deploy.commands.test_dead_letters import assembling
from tests.streams.test_workers import worker

pytestmark = pytest.mark.kafka

FIRST_ALARMS = {"marked-answer": "marked", "search-once": "few_calls"}
"""Hack → the monitor that alarms first."""


def test_a_broker_without_processors_is_said(kafka: str) -> None:
    plan = Plan(HACKS["padding"], honest=26, steps=1)
    with pytest.raises(StackError, match=r"no observation of 192 .* 1 s: `headrace status` shows"):
        plant_live(kafka, plan, stalled_s=1)


@pytest.mark.nightly
def test_hacks_planted_into_running_processors_raise_alerts_with_guilty_attempts(kafka: str, tmp_path: Path) -> None:
    """Two hacks at a time, one by the command: the alarms come from the processor watch alone."""
    later = Plan(HACKS["search-once"], honest=26, steps=20)
    with assembling(kafka), worker(kafka, tmp_path), ThreadPoolExecutor(1) as threads:
        other = threads.submit(plant_live, kafka, later)
        done = CliRunner().invoke(
            command, ["plant", "marked-answer", "--honest", "26", "--steps", "15", "--live", "--kafka", kafka]
        )
        assert done.exit_code == 0, done.output
        sent = other.result()
        _wait_for_fates(kafka, sent.attempts + 41 * 64 + 9 * 32)
    heading, first, *_, last = done.output.splitlines()
    assert heading == " step share  alarms"
    assert first.split()[2:4] == ["marked", "opened:"]
    assert int(first.split()[0]) <= 15
    assert sent.attempts == 46 * 64 + 10 * 32
    assert last.startswith(f"{41 * 64 + 9 * 32} attempts in ")

    records = asyncio.run(everything(kafka))
    known = {each.trajectory_id: each for each in records[TRAJECTORIES] if isinstance(each, Trajectory)}
    alarms = read_episodes(kafka)
    for hack, monitor in FIRST_ALARMS.items():
        alarm = next(each for each in alarms if each.newest.run.startswith(f"planted-{hack}-"))
        assert alarm.episode.monitor == monitor
        assert alarm.newest.source == "watch"
        assert sum(shows(hack, known[each]) for each in examples_of(alarm)) >= 3
        assert f"--run {alarm.newest.run}" in last or alarm.newest.run == sent.run
    fates = [each.trajectory_id for each in records[REJECTED] if isinstance(each, Rejection)]
    assert sorted(fates) == sorted(known), "each trajectory has one fate"
    assert (records[TRAINING], records[DEAD_LETTERS]) == ([], [])


def _wait_for_fates(kafka: str, attempts: int) -> None:
    """Wait until that many trajectories are rejected: the command waits for observations only."""
    until = time.monotonic() + 60
    while len(asyncio.run(everything(kafka))[REJECTED]) < attempts and time.monotonic() < until:
        time.sleep(0.5)


def examples_of(alarm: EpisodeStatus) -> list[str]:
    return list(alarm.episode.examples)


def shows(hack: str, trajectory: Trajectory) -> bool:
    """Whether the text of ``trajectory`` has the sentence of the hack."""
    texts = [str(each["content"]) for turn in trajectory.turns for each in turn.messages or []]
    return any(HACKS[hack].says in text for text in texts)


async def everything(kafka: str) -> dict[Topic, list[Record]]:
    found: dict[Topic, list[Record]] = {}
    for topic in (TRAJECTORIES, REJECTED, TRAINING, DEAD_LETTERS):
        found[topic] = [decode(each.headers, each.value)[1] async for each in read_to_end(kafka, topic, decided=True)]
    return found
