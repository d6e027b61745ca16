"""Score and group after their topics were deleted and created again: reported, and each new record decided once."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace.deploy.system.children import Child
from headrace.schemas.envelope import SUBJECT
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, REWARDS, TRAJECTORIES
from headrace.schemas.wire import decode
from headrace.streams.lost_offset import TOPIC_RECREATED
from tests.streams.clickhouse.test_deleted_topics import recreate
from tests.streams.faust_shell.test_expired_records import PARTITION, SCORE, Frozen, attempts, produce
from tests.streams.test_workers import records, until, worker

pytestmark = pytest.mark.kafka


def recreated(bootstrap: str) -> list[tuple[str, int]]:
    """Topic and partition of each alert of score about a recreated topic."""

    async def run() -> list[tuple[str, int]]:
        read = [decode(each.headers, each.value)[1] async for each in read_to_end(bootstrap, ALERTS, decided=True)]
        found = [each for each in read if isinstance(each, Alert) and each.kind == TOPIC_RECREATED]
        return [(each.details["topic"], each.details["partition"]) for each in found if each.source == SCORE]

    return asyncio.run(run())


def scored(bootstrap: str, prefix: str) -> Counter[str]:
    return Counter(dict(record.headers)[SUBJECT].decode() for record in records(bootstrap, REWARDS, prefix))


@pytest.mark.parametrize(("is_running", "count"), [(False, 2), (False, 9), (True, 2)])
def test_a_recreated_topic_is_read_from_its_start(kafka: str, tmp_path: Path, is_running: bool, count: int) -> None:
    """The new log is shorter or longer than what was read of the old one."""
    name = f"{'running' if is_running else 'stopped'}-{count}"
    before = recreated(kafka)

    def replace() -> None:
        asyncio.run(recreate(kafka, TRAJECTORIES))
        produce(kafka, TRAJECTORIES, attempts(f"new-{name}", count))

    def work(running: Child) -> bool:
        """Until it has ended or decided the new records."""
        wanted = {f"new-{name}-{number}" for number in range(count)}
        until(
            lambda: running.poll() is not None or scored(kafka, f"new-{name}").keys() == wanted,
            "the new records are decided",
            running.log,
            within_s=90,
        )
        return running.poll() is None

    with worker(kafka, tmp_path) as first:
        produce(kafka, TRAJECTORIES, attempts(f"old-{name}", 5))
        until(lambda: len(scored(kafka, f"old-{name}")) == 5, "the old are decided", first.log, within_s=60)
        if is_running:
            with Frozen(first):
                replace()
            assert not work(first), "the records before its position would be dropped"
        else:
            first.terminate()
            assert first.wait(30) == 0
            replace()
            with worker(kafka, tmp_path) as refusing:
                assert not work(refusing)
                first = refusing
        assert first.wait(30) == 1
        assert f"trajectories[{PARTITION}] was deleted and created again" in first.log.read_text()
    with worker(kafka, tmp_path) as second:
        assert work(second)
        time.sleep(2)  # another alert would be written with the next commit
    assert set(scored(kafka, f"new-{name}").values()) == {1}
    assert set(scored(kafka, f"old-{name}").values()) == {1}
    assert recreated(kafka)[len(before) :] == [(TRAJECTORIES.name, PARTITION)]
