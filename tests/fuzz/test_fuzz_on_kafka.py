"""The same cases through a real Kafka and the live processes: no process ends, and every trajectory has its fate."""

import asyncio
import itertools
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace.deploy.system.children import end_of
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.topics import DEAD_LETTERS, REJECTED, TRAINING, TRAJECTORIES
from headrace.schemas.wire import decode
from tests.fuzz.generate import cases
from tests.streams.replay.test_run import running

pytestmark = [pytest.mark.kafka, pytest.mark.nightly]

CASES = 150


async def send(bootstrap: str) -> None:
    """The first cases of a seed, with current timestamps, as a broker that bounds them requires."""
    now_ms = time.time_ns() // 1_000_000
    async with open_producer(bootstrap) as producer:
        for case in itertools.islice(cases(11), CASES):
            for record in case.records:
                headers = [(name, value) for name, value in record.headers]
                await producer.send(
                    record.topic, key=record.key, value=record.value, headers=headers, timestamp_ms=now_ms
                )  # fmt: skip


async def fates(bootstrap: str) -> tuple[set[tuple[int, int]], Counter[tuple[int, int]]]:
    """Trajectories by offset, and the number of fates of each."""
    there = {(each.partition, each.offset) async for each in read_to_end(bootstrap, TRAJECTORIES, decided=True)}
    found: Counter[tuple[int, int]] = Counter()
    for topic in (TRAINING, REJECTED, DEAD_LETTERS):
        async for record in read_to_end(bootstrap, topic, decided=True):
            match decode(record.headers, record.value)[1]:
                case Rejection() as payload:
                    found[payload.trajectory.partition, payload.trajectory.offset] += 1
                case TrainingGroup() as payload:
                    found.update((each.trajectory.partition, each.trajectory.offset) for each in payload.members)
                case DeadLetter() as payload if payload.topic == TRAJECTORIES.name:
                    found[payload.partition, payload.offset] += 1
    return there, found


def test_no_process_ends_and_every_trajectory_has_its_fate(kafka: str, tmp_path: Path) -> None:
    with (
        running(kafka, tmp_path, "assemble", idle_timeout_s=5) as assembler,
        running(kafka, tmp_path, "workers", group_timeout_s=10, remember_s=60) as workers,
    ):
        asyncio.run(send(kafka))
        deadline = time.monotonic() + 180
        while True:
            there, found = asyncio.run(fates(kafka))
            # The first cases open as many trajectories, except those too broken to belong to a trajectory.
            if len(there) > CASES * 0.8 and there == set(found):
                break
            assert time.monotonic() < deadline, f"{len(there)} trajectories, {len(found)} fates\n{end_of(workers.log)}"
            time.sleep(1)
        assert assembler.poll() is None, end_of(assembler.log)
        assert workers.poll() is None, end_of(workers.log)
    assert set(found.values()) == {1}
