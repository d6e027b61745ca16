"""Score and group when retention deletes records that they have not read: counted, reported once, and they continue."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from headrace.deploy.system.children import Child
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import REJECTED, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message
from headrace.streams.scoring.score import reward_message
from tests.expired import delete_before, expired_alerts
from tests.streams.attempts import attempt, rewarded, trajectory_message
from tests.streams.test_workers import records, until, worker

pytestmark = pytest.mark.kafka

PARTITION = 2
SCORE, GROUP = "headrace-score", "headrace-group"


def produce(bootstrap: str, topic: Topic, messages: list[Message]) -> list[int]:
    """Returns the offsets."""

    async def run() -> list[int]:
        async with open_producer(bootstrap) as producer:
            return [(await (await send(producer, topic, each, PARTITION))).offset for each in messages]

    return asyncio.run(run())


def attempts(prefix: str, count: int) -> list[Message]:
    return [trajectory_message(attempt(f"{prefix}-{number}", group=None)) for number in range(count)]


def rewards(prefix: str, count: int) -> list[Message]:
    return [reward_message(rewarded(f"{prefix}-{number}", group=None)) for number in range(count)]


def delete(bootstrap: str, topic: Topic, offset: int) -> None:
    asyncio.run(delete_before(bootstrap, TopicPartition(topic.name, PARTITION), offset))


def end_of(bootstrap: str, topic: Topic) -> int:
    async def run() -> int:
        place = TopicPartition(topic.name, PARTITION)
        async with open_consumer(bootstrap) as consumer:
            return int((await consumer.end_offsets([place]))[place])

    return asyncio.run(run())


def alerts(bootstrap: str, source: str) -> list[tuple[str, int, int, int]]:
    return asyncio.run(expired_alerts(bootstrap, source))


class Frozen:
    """A worker that reads nothing; shorter than its session, so that it keeps its partitions."""

    def __init__(self, running: Child) -> None:
        self._pid = running.pid

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        time.sleep(0.5)  # the broker answers a fetch that waits for records within FETCH_WAIT_MS

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)


def test_a_first_start_on_a_log_without_its_beginning_loses_nothing(kafka: str, tmp_path: Path) -> None:
    """Without a committed offset the client starts at the log start, in every partition."""
    kept = produce(kafka, TRAJECTORIES, attempts("kept", 6))
    delete(kafka, TRAJECTORIES, kept[2])
    with worker(kafka, tmp_path / "new") as running:
        until(lambda: len(records(kafka, REJECTED, "kept")) == 4, "those that are left are decided", running.log)
    assert alerts(kafka, SCORE) == alerts(kafka, GROUP) == []


def test_records_that_expire_while_score_and_group_run_raise_one_alert_each_and_the_rest_is_processed(
    kafka: str, tmp_path: Path
) -> None:
    with worker(kafka, tmp_path) as running:
        produce(kafka, TRAJECTORIES, attempts("before", 3))
        until(lambda: len(records(kafka, REJECTED, "before")) == 3, "the first are decided", running.log)
        with Frozen(running):
            scored = produce(kafka, TRAJECTORIES, attempts("scored", 10))
            delete(kafka, TRAJECTORIES, scored[7])
        until(lambda: len(records(kafka, REJECTED, "scored")) == 3, "the rest is decided", running.log)
        until(lambda: bool(alerts(kafka, SCORE)), "score raises an alert", running.log)
        assert alerts(kafka, SCORE) == [(TRAJECTORIES.name, PARTITION, scored[7], 7)]
        assert alerts(kafka, GROUP) == []

        with Frozen(running):  # of the rewards nothing is left: the alert waits for no record
            first = end_of(kafka, REWARDS)
            grouped = produce(kafka, REWARDS, rewards("grouped", 5))
            delete(kafka, REWARDS, grouped[-1] + 1)
        until(lambda: bool(alerts(kafka, GROUP)), "group raises an alert", running.log)
        assert alerts(kafka, GROUP) == [(REWARDS.name, PARTITION, grouped[-1] + 1, grouped[-1] + 1 - first)]
        produce(kafka, TRAJECTORIES, attempts("after", 3))
        until(lambda: len(records(kafka, REJECTED, "after")) == 3, "the worker continues", running.log)
        running.terminate()
        assert running.wait(30) == 0
        # Once by each of the processors that read `trajectories`: score and observe.
        assert running.log.read_text().count("deleted 7 offsets before they were read") == 2

    missed = produce(kafka, TRAJECTORIES, attempts("missed", 4))
    delete(kafka, TRAJECTORIES, missed[3])
    with worker(kafka, tmp_path) as again:
        until(lambda: len(records(kafka, REJECTED, "missed")) == 1, "the last is decided", again.log)
        time.sleep(2)  # the client finds the same gap, and stream time advances every second
    assert alerts(kafka, SCORE)[1:] == [(TRAJECTORIES.name, PARTITION, missed[3], 3)]
    assert len(alerts(kafka, GROUP)) == 1

    gone = produce(kafka, TRAJECTORIES, attempts("gone", 3))
    delete(kafka, TRAJECTORIES, gone[-1] + 1)
    for _ in range(2):  # nothing is left to read, and no restart raises the alert again
        with worker(kafka, tmp_path) as later:
            until(lambda: len(alerts(kafka, SCORE)) == 3, "score raises an alert", later.log)
            time.sleep(3)
            later.terminate()
            assert later.wait(30) == 0
    assert alerts(kafka, SCORE)[2:] == [(TRAJECTORIES.name, PARTITION, gone[-1] + 1, 3)]
