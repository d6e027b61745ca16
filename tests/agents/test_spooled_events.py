"""Events of the SDK while a real Kafka is away for long: on disk, and afterwards in the log, each once by its ID."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.agents.sdk import Headrace
from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import envelope_of
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History, UnusableRecord
from tests.agents.sdk_helpers import NOWHERE
from tests.conftest import RunningKafka

pytestmark = pytest.mark.kafka

CALLS = 198
"""Model calls of a trajectory, which has 200 events with its start and end."""


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait for ``condition``; the limit only detects hanging."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def log_of(bootstrap: str, source: str) -> list[tuple[Envelope, KafkaRecord]]:
    """Return the events of ``source`` in the log, in the order of each partition."""

    async def read() -> list[tuple[Envelope, KafkaRecord]]:
        return [(envelope_of(record.headers), record) async for record in read_to_end(bootstrap, EVENTS)]

    return [(envelope, record) for envelope, record in asyncio.run(read()) if envelope.source == source]


def trajectories_of(found: list[tuple[Envelope, KafkaRecord]]) -> tuple[list[History], list[UnusableRecord]]:
    """Return what the assembler makes of the records."""
    folds: dict[int, PartitionFold] = {}
    outcomes: list[History | UnusableRecord] = []
    for _, record in found:
        outcomes += folds.setdefault(record.partition, PartitionFold(FoldLimits())).arrive(record)
    histories = [each for each in outcomes if isinstance(each, History)]
    return histories, [each for each in outcomes if isinstance(each, UnusableRecord)]


def work(headrace: Headrace, name: str, trajectories: int) -> None:
    """Emit trajectories of 200 events each, no faster than the sender encodes them."""
    for number in range(trajectories):
        with headrace.trajectory(task_id="q", agent="shop", trajectory_id=f"{name}-{number}") as t:
            for _ in range(CALLS):
                t.model_called("m", messages=[{"role": "assistant", "content": "We have both."}])
        within(60, lambda: len(headrace._sender._queue) < 200)


def test_no_event_is_lost_while_kafka_is_away_for_forty_queues(
    running_kafka: RunningKafka, kafka: str, tmp_path: Path
) -> None:
    source = uuid7()
    with Headrace(kafka, source=source, queue_size=1_000, spool_folder=tmp_path / "spool") as headrace:
        work(headrace, f"{source}-before", 1)
        assert headrace.flush(60)
        running_kafka.freeze()
        try:
            work(headrace, f"{source}-away", 200)
            within(60, lambda: headrace.stats.spooled > 39_000)
            assert headrace.stats.dropped == {}
        finally:
            running_kafka.freeze(False)
        asyncio.run(running_kafka.stays_listed())
        work(headrace, f"{source}-after", 1)
        assert headrace.flush(300)
        stats = headrace.stats
    assert (stats.emitted, stats.sent, stats.queued, stats.spooled, stats.dropped) == (40_400, 40_400, 0, 0, {})
    assert list((tmp_path / "spool").glob("*.spool")) == []
    found = log_of(kafka, source)
    assert len({envelope.id for envelope, _ in found}) == 40_400
    histories, unusable = trajectories_of(found)
    assert (len(histories), unusable) == (202, [])
    assert [each.trajectory_id for each in histories if list(each.records) != list(range(200))] == []
    assert sum(each.duplicates for each in histories) <= len(found) - 40_400


HOST = """
import sys, time
from headrace.agents.sdk import Headrace
from tests.agents.test_spooled_events import work

kafka, source, folder = sys.argv[1:]
headrace = Headrace(kafka, source=source, queue_size=1_000, spool_folder=folder)
work(headrace, f"{source}-before", 1)
assert headrace.flush(60)
print("connected", flush=True)
sys.stdin.readline()
work(headrace, f"{source}-away", 20)
sender = headrace._sender
while sender._queue or sender._outbox.behind or not headrace.stats.spooled:
    time.sleep(0.01)
print("on disk", flush=True)
work(headrace, f"{source}-later", 10_000)
"""


def test_the_next_process_sends_what_a_killed_one_had_on_disk(
    running_kafka: RunningKafka, kafka: str, tmp_path: Path
) -> None:
    source, folder = uuid7(), tmp_path / "spool"
    argv = [sys.executable, "-c", HOST, kafka, source, str(folder)]
    host = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert host.stdin is not None
    assert host.stdout is not None
    try:
        assert host.stdout.readline() == "connected\n"
        running_kafka.freeze()
        host.stdin.write("\n")
        host.stdin.flush()
        assert host.stdout.readline() == "on disk\n"
        time.sleep(1)  # it is in the middle of writing further events
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
        running_kafka.freeze(False)
    asyncio.run(running_kafka.stays_listed())

    with Headrace(kafka, source=f"{source}-next", spool_folder=folder) as headrace:
        headrace.trajectory(task_id="q", agent="shop").end()
        assert headrace.flush(60)
        within(120, lambda: not list(folder.glob("*.spool")))
        stats = headrace.stats
        assert stats.adopted >= 4_000
        assert stats.emitted + stats.adopted == stats.sent + stats.queued + stats.spooled + sum(stats.dropped.values())
        assert set(stats.dropped) <= {"spool_damaged"}, "at most the end that was being written"
    ids: dict[tuple[str, int | None], set[str]] = {}
    for envelope, _ in log_of(kafka, source):
        ids.setdefault((envelope.subject, envelope.sequence), set()).add(envelope.id)
    assert {len(each) for each in ids.values()} == {1}, "an event that was sent twice has one ID"
    expected = {(f"{source}-away-{number}", sequence) for number in range(20) for sequence in range(200)}
    assert expected <= set(ids)
    assert os.listdir(folder) in ([], [each for each in os.listdir(folder) if each.endswith(".lock")])


LEAVING = """
import sys
from headrace.agents.sdk import Headrace

headrace = Headrace(sys.argv[1], source="leaving", flush_deadline_s=0.2, spool_folder=sys.argv[2])
with headrace.trajectory(task_id="q", agent="script") as t:
    for _ in range(200):
        t.model_called("m")
"""


def test_a_program_that_ends_while_kafka_is_away_leaves_its_events_on_disk(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LEAVING, NOWHERE, str(tmp_path / "spool")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "202 events were not sent; they are in" in done.stderr
    assert "dropped" not in done.stderr
    assert len(list((tmp_path / "spool").glob("*.spool"))) == 1


def test_events_for_one_cluster_do_not_reach_another(kafka: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    away = Headrace(NOWHERE, source="elsewhere", flush_deadline_s=0, spool_folder=folder)
    away.trajectory(task_id="q", agent="shop").end()
    assert not away.close()
    assert (away.stats.spooled, away.stats.dropped) == (2, {})
    (segment,) = folder.glob("*.spool")
    with Headrace(kafka, source="here", spool_folder=folder) as headrace:
        headrace.trajectory(task_id="q", agent="shop").end()
        assert headrace.flush(60)
        within(20, lambda: headrace._sender._outbox._adopt_at > 0)  # it has searched
        headrace.trajectory(task_id="q", agent="shop").end()
        assert headrace.flush(60)
        assert headrace.stats.adopted == 0
    assert segment.exists()
    assert log_of(kafka, "elsewhere") == []
