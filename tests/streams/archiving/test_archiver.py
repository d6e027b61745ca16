"""Topics of a real broker in the archive: every committed record once, and what was lost is said."""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pandas
import pytest
from aiokafka import TopicPartition

from headrace.schemas.archive.archive import Archive, NotArchived, open_archive
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.objects.unavailable import StoreUnavailable
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import ALERTS, REWARDS, STEPS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode
from headrace.streams.archiving.archiver import Archiver, Log, is_due, open_log, run_archiver
from headrace.streams.archiving.config import ARCHIVED, ArchiveConfig
from headrace.streams.scoring.score import reward_message
from tests.schemas.kafka.test_reading import delete_before
from tests.streams.archiving.archived import archive_now

PAGE = Path(__file__).parents[3] / "streams" / "archiving" / "README.md"


@pytest.mark.parametrize(
    ("waiting", "waited_s", "due"), [(0, 99.0, False), (1, 59.0, False), (1, 60.0, True), (100, 0.0, True)]
)
def test_a_segment_is_due_when_its_file_is_full_or_its_time_has_passed(
    waiting: int, waited_s: float, due: bool
) -> None:
    config = ArchiveConfig("broker:9092", "file:///x", interval_s=60, file_records=100)
    assert is_due(waiting, waited_s, config) is due


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topics": ("budget",)}, "budget is compacted"),
        ({"topics": ("event",)}, "no topic 'event'"),
        ({"topics": ()}, "topics is empty"),
        ({"store_url": "/data"}, "store_url '/data' has none of these forms"),
        ({"interval_s": 10**6}, "interval_s must be within 0 and 86400"),
        ({"file_mb": 0}, "file_mb must be within 1 and 128"),
        ({"check_s": 0.0}, "check_s must be above 0"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArchiveConfig(**({"bootstrap": "broker:9092", "store_url": "file:///x"} | wrong))


async def write(kafka: str, topic: Topic, count: int, partition: int = 0) -> None:
    """Records in transactions of three, each followed by one that is aborted."""
    async with open_producer(kafka, transactional_id=f"{topic.name}-{partition}") as producer:
        for start in range(0, count, 3):
            async with producer.transaction():
                for number in range(start, min(start + 3, count)):
                    message = Message(b"k%d" % number, b"v" * number, [("n", b"%d" % number), ("n", b"")])
                    await (await send(producer, topic, message, partition=partition))
            await producer.begin_transaction()
            await (await send(producer, topic, Message(b"aborted", b"", []), partition=partition))
            await producer.abort_transaction()


async def logged(kafka: str, topic: Topic) -> list[tuple[Any, ...]]:
    return sorted(
        [
            (each.partition, each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
            async for each in read_to_end(kafka, topic)
        ]
    )


async def archived(archive: Archive, topic: Topic, stops: dict[int, int]) -> list[tuple[Any, ...]]:
    found = []
    for partition, stop in stops.items():
        async for records in archive.read(TopicPartition(topic.name, partition), 0, stop):
            found += [
                (each.partition, each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
                for each in records
            ]
    return sorted(found)


@asynccontextmanager
async def archiver(kafka: str, folder: Path, clock: list[float], **options: Any) -> AsyncIterator["Turns"]:
    config = ArchiveConfig(kafka, folder.as_uri(), **options)
    async with open_log(kafka) as log:
        yield Turns(Archiver(config, ObjectStore(config.store_url), lambda: clock[0]), log)


class Turns:
    """An archiver whose turns a test takes."""

    def __init__(self, of: Archiver, log: Log) -> None:
        self._of, self._log = of, log

    async def turn(self) -> int:
        return await self._of.turn(self._log, asyncio.Event())


async def ends(kafka: str, topic: Topic) -> dict[int, int]:
    async with open_consumer(kafka) as consumer:
        places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        return {place.partition: end for place, end in (await consumer.end_offsets(places)).items()}


_ARCHIVE_NOW = """
import asyncio, sys
from pathlib import Path
from tests.streams.archiving.archived import archive_now
asyncio.run(archive_now(sys.argv[1], Path(sys.argv[2]), file_records=1, topics=("trajectories",)))
"""


@pytest.mark.kafka
async def test_an_archiver_that_is_killed_again_and_again_archives_every_record_once(
    kafka: str, tmp_path: Path
) -> None:
    await write(kafka, TRAJECTORIES, 60, partition=0)
    kills = await asyncio.to_thread(kill_until_done, kafka, tmp_path, random.Random(7))
    assert kills >= 2, "many were to be killed"
    archive, stops = await open_archive(tmp_path.as_uri(), kafka, [TRAJECTORIES.name]), await ends(kafka, TRAJECTORIES)
    assert await archived(archive, TRAJECTORIES, stops) == await logged(kafka, TRAJECTORIES)


def kill_until_done(kafka: str, folder: Path, rng: random.Random) -> int:
    """Kill each archiver after some more segments, until one ends; returns how many were killed."""
    for kills in range(100):
        enough = segments_in(folder) + rng.randint(0, 15)
        child = subprocess.Popen([sys.executable, "-c", _ARCHIVE_NOW, kafka, str(folder)])
        try:
            while child.poll() is None and segments_in(folder) <= enough:
                time.sleep(0.001)
        finally:
            child.kill()
        if child.wait() == 0:
            return kills
        assert child.returncode == -signal.SIGKILL
    raise AssertionError("no archiver came to its end")


def segments_in(folder: Path) -> int:
    """How many segments, or beginnings of them, are in a store."""
    return sum(path.is_file() for path in folder.rglob("*"))


@pytest.mark.kafka
@pytest.mark.parametrize("file_records", [1, 7, 1000])
async def test_every_committed_record_is_archived_once_also_by_a_second_process(
    kafka: str, tmp_path: Path, file_records: int
) -> None:
    options: dict[str, Any] = {"interval_s": 60, "file_records": file_records, "topics": (TRAJECTORIES.name,)}
    clock = [0.0]
    async with archiver(kafka, tmp_path, clock, **options) as one, archiver(kafka, tmp_path, clock, **options) as two:
        await write(kafka, TRAJECTORIES, 20, partition=0)
        await write(kafka, TRAJECTORIES, 5, partition=3)
        made = await one.turn() + await two.turn()
        clock[0] = 60.0
        assert made + await one.turn() + await two.turn() > 0
        await write(kafka, TRAJECTORIES, 10, partition=0)
        await two.turn()
        await one.turn()
        clock[0] = 180.0
        await asyncio.gather(one.turn(), two.turn())
        assert await one.turn() == await two.turn() == 0
    found = await open_archive(tmp_path.as_uri(), kafka, [TRAJECTORIES.name])
    stops = await ends(kafka, TRAJECTORIES)
    records = await logged(kafka, TRAJECTORIES)
    assert len(records) >= 35
    assert await archived(found, TRAJECTORIES, stops) == records
    frame = pandas.read_parquet(tmp_path / "archive")
    rows = sorted(zip(frame["partition"], frame["offset"], frame["value"], strict=True))
    assert rows == [(partition, offset, value) for partition, offset, _, _, value, _ in records], "none in two files"
    assert set(frame["topic"]) == {TRAJECTORIES.name}


@pytest.mark.kafka
async def test_the_pages_query_for_duckdb_and_its_lines_for_pandas_count_rewards_by_version(
    kafka: str, tmp_path: Path
) -> None:
    page = PAGE.read_text()
    query = re.search(r"```sql duckdb\n(.*?)```", page, re.S)
    lines = re.search(r"```python archive-pandas\n(.*?)```", page, re.S)
    assert query
    assert lines
    async with archiver(kafka, tmp_path, [0.0], file_records=1, topics=(REWARDS.name,)) as one:
        async with open_producer(kafka) as producer:
            for number, version in enumerate(["search@1", "search@2", "search@2"]):
                scored = EXAMPLES[Reward.TYPE].payload.model_copy(update={"spec": version})
                assert isinstance(scored, Reward)
                await (await send(producer, REWARDS, reward_message(scored), partition=number % REWARDS.partitions))
        await one.turn()
    # In a process of its own: DuckDB and the embedded ClickHouse bring copies of the same libraries.
    program = "import duckdb, json, sys; print(json.dumps(sorted(duckdb.connect().execute(sys.argv[1]).fetchall())))"
    duckdb, pandas_ = [
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        for arguments in ((program, query[1]), (lines[1],))
    ]
    assert json.loads(duckdb.stdout) == [["search@1", 1], ["search@2", 2]]
    assert pandas_.stdout.split()[:5] == ["spec", "search@1", "1", "search@2", "2"]


@pytest.mark.kafka
async def test_what_waits_is_archived_after_the_interval(kafka: str, tmp_path: Path) -> None:
    clock = [100.0]
    async with archiver(kafka, tmp_path, clock, interval_s=60, topics=(STEPS.name,)) as one:
        await write(kafka, STEPS, 2)
        assert await one.turn() == 0
        clock[0] += 59
        assert await one.turn() == 0
        clock[0] += 1
        assert await one.turn() == 1
        await write(kafka, STEPS, 1)
        assert await one.turn() == 0, "the time begins anew"


@pytest.mark.kafka
async def test_records_that_were_deleted_before_they_were_archived_raise_an_alert(kafka: str, tmp_path: Path) -> None:
    await write(kafka, REWARDS, 9)
    await archive_now(kafka, tmp_path, topics=(REWARDS.name,))
    stop = (await ends(kafka, REWARDS))[0]
    await write(kafka, REWARDS, 9)
    await delete_before(kafka, TopicPartition(REWARDS.name, 0), stop + 4)
    assert await archive_now(kafka, tmp_path, topics=(REWARDS.name,)) == 1
    alerts = [decode(each.headers, each.value)[1] async for each in read_to_end(kafka, ALERTS)]
    raised = [each for each in alerts if isinstance(each, Alert) and each.source == "archive"]
    assert [(each.kind, each.details["unread"]) for each in raised] == [("records_expired", 4)]
    place = TopicPartition(REWARDS.name, 0)
    found = await open_archive(tmp_path.as_uri(), kafka, [REWARDS.name])
    assert await found.begin(place, stop + 6) == stop + 4
    with pytest.raises(NotArchived, match=rf"no longer has offset {stop},"):
        [each async for each in found.read(place, 0, stop + 6)]


@pytest.mark.kafka
async def test_a_store_that_does_not_answer_loses_nothing(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(kafka, STEPS, 3)
    honest, failures, stop = ObjectStore.create_if_absent, [2], asyncio.Event()

    async def failing(self: ObjectStore, path: str, data: bytes) -> bool:
        if failures[0]:
            failures[0] -= 1
            raise StoreUnavailable("away")
        return await honest(self, path, data)

    monkeypatch.setattr(ObjectStore, "create_if_absent", failing)
    config = ArchiveConfig(kafka, tmp_path.as_uri(), interval_s=0, retry_most_s=0.01, topics=(STEPS.name,))
    await asyncio.wait_for(run_archiver(config, stop=stop, ready=stop.set), 60)
    found = await open_archive(tmp_path.as_uri(), kafka, [STEPS.name])
    assert await archived(found, STEPS, await ends(kafka, STEPS)) == await logged(kafka, STEPS)


@pytest.mark.kafka
async def test_all_topics_are_archived_by_default(kafka: str, tmp_path: Path) -> None:
    await archive_now(kafka, tmp_path)
    there = {path.name.removeprefix("topic=") for path in (tmp_path / "archive").iterdir()}
    assert there <= {topic.name for topic in ARCHIVED}
    assert {STEPS.name, TRAJECTORIES.name} <= there
