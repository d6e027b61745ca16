"""The journal: what was recorded is on disk or in Kafka, whatever happens to the gateway or to Kafka."""

import asyncio
import itertools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from headrace.agents.counters import SdkCounters
from headrace.agents.delivery import EventDelivery
from headrace.agents.gateway.journal import Journal, JournalFull, WhenFull
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, SpooledRecord, cluster_fingerprint
from headrace.schemas.events import ToolCalled
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message, envelope_of
from tests.agents.gateway.scripted_engine import until
from tests.agents.sdk_helpers import NOWHERE
from tests.conftest import RunningKafka

NOW_MS = 1_750_000_000_000
CLUSTER = cluster_fingerprint("journal")


def event(trajectory_id: str, seq: int, size: int = 10) -> TrajectoryEvent:
    return TrajectoryEvent(trajectory_id, seq, ToolCalled(call_id="c", tool="t", arguments={"text": "x" * size}))


def unexpected(path: str, loss: Loss) -> None:
    raise AssertionError(f"{path}: {loss}")


class PickyProducer(AIOKafkaProducer):
    """A producer whose broker refuses what is larger than 4 kB. Only injects faults."""

    def __init__(self, taken: list[bytes]) -> None:
        super().__init__(bootstrap_servers=NOWHERE)
        self.taken = taken

    async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(value) > 4_000:
            answer.set_exception(MessageSizeTooLargeError())
        else:
            self.taken.append(value)
            answer.set_result(None)
        return answer

    async def stop(self) -> None:
        self._closed = True  # nothing was started


def spool_in(folder: Path, limit_bytes: int = 1 << 26) -> Spool:
    return Spool(folder, limit_bytes, CLUSTER, unexpected)


@asynccontextmanager
async def running(
    spool: Spool,
    bootstrap: str = NOWHERE,
    *,
    source: str = "/agents/gateway",
    when_full: WhenFull = WhenFull.STRICT,
    memory_bytes: int = 1 << 26,
    flush_s: float = 0.0,
) -> AsyncIterator[Journal]:
    journal = Journal(
        spool, bootstrap, {}, SdkCounters(), source=source, when_full=when_full, new_id=uuid7, memory_bytes=memory_bytes
    )
    async with asyncio.TaskGroup() as tasks:
        journal.start(tasks)
        yield journal
        await journal.close(flush_s)


def left_in(folder: Path) -> list[SpooledRecord]:
    """What the next process finds."""
    spool, found = spool_in(folder), []
    while spool.adopt():
        while taken := spool.take_adopted(100, 1 << 30):
            found += [each.record for each in taken]
            for each in taken:
                spool.done(each.segment)
    spool.close()
    return found


def places(records: Sequence[SpooledRecord]) -> dict[str, list[int | None]]:
    """Sequence numbers by trajectory, in order."""
    found: dict[str, list[int | None]] = defaultdict(list)
    for record in records:
        envelope = envelope_of(record.headers)
        found[envelope.subject].append(envelope.sequence)
    return found


async def test_what_is_recorded_without_kafka_is_on_disk_in_order(tmp_path: Path) -> None:
    async with running(spool_in(tmp_path / "spool")) as journal:
        calls = [journal.record([event(f"t{n % 3}", n // 3 * 2 + i) for i in range(2)], NOW_MS) for n in range(30)]
        assert await asyncio.gather(*calls) == [True] * 30
        assert await journal.record([], NOW_MS)
        assert (journal.holes, journal.unacknowledged) == (0, 60)
    assert places(left_in(tmp_path / "spool")) == {f"t{n}": list(range(20)) for n in range(3)}


async def test_concurrent_calls_share_a_write(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    syncs, may_sync = itertools.count(), threading.Event()

    def sync(fd: int) -> None:
        next(syncs)
        may_sync.wait(20)

    spool._sync = sync
    async with running(spool) as journal:
        calls = [asyncio.create_task(journal.record([event("t", 0)], NOW_MS))]
        while spool._folder is None:  # noqa: ASYNC110 - another thread opens it
            await asyncio.sleep(0.001)
        calls += [asyncio.create_task(journal.record([event("t", n)], NOW_MS)) for n in range(1, 50)]
        await asyncio.sleep(0.01)
        assert not any(call.done() for call in calls)
        may_sync.set()
        assert all(await asyncio.gather(*calls))
    assert next(syncs) == 2
    assert places(left_in(tmp_path / "spool")) == {"t": list(range(50))}


async def test_a_full_spool_refuses_the_call_and_writes_nothing_of_it(tmp_path: Path) -> None:
    async with running(spool_in(tmp_path / "spool", 20_000)) as journal:
        assert await journal.record([event("a", 0)], NOW_MS)
        with pytest.raises(JournalFull, match="enlarge spool_bytes") as refused:
            await journal.record([event("b", 0), event("b", 1, size=30_000)], NOW_MS)
        assert refused.value.retry_after_s > 0
        assert await journal.record([event("a", 1)], NOW_MS)
        assert journal.holes == 0
    assert places(left_in(tmp_path / "spool")) == {"a": [0, 1]}


async def test_one_call_that_does_not_fit_does_not_affect_those_written_with_it(tmp_path: Path) -> None:
    async with running(spool_in(tmp_path / "spool", 20_000), when_full=WhenFull.OPEN) as journal:
        sizes = [10, 30_000, 10]
        calls = [journal.record([event(f"t{n}", 0, size)], NOW_MS) for n, size in enumerate(sizes)]
        assert await asyncio.gather(*calls) == [True, False, True]
        assert journal.holes == 1
    assert places(left_in(tmp_path / "spool")).keys() == {"t0", "t2"}


async def test_a_folder_that_cannot_be_used_is_like_a_full_spool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spool").write_text("a file")
    async with running(spool_in(tmp_path / "spool")) as journal:
        with pytest.raises(JournalFull):
            await journal.record([event("t", 0)], NOW_MS)
    assert "cannot be used" in caplog.text


async def test_an_event_that_no_broker_takes_is_a_counted_hole(tmp_path: Path) -> None:
    async with running(spool_in(tmp_path / "spool")) as journal:
        assert await journal.record([event("t", 0), event("t", 1, MAX_REQUEST_BYTES), event("t", 2)], NOW_MS)
        assert journal.holes == 1
    assert places(left_in(tmp_path / "spool")) == {"t": [0, 2]}


async def test_an_event_that_no_broker_takes_counts_once(tmp_path: Path) -> None:
    """Its call may be refused several times."""
    events = [event("t", 0, 30_000), event("t", 1, MAX_REQUEST_BYTES)]
    async with running(spool_in(tmp_path / "strict", 20_000)) as journal:
        for _ in range(3):
            with pytest.raises(JournalFull):
                await journal.record(events, NOW_MS)
        assert journal.holes == 0, "nothing of the call was given up"
        assert await journal.record(events[1:], NOW_MS)
        assert (journal.holes, journal._counters.dropped()) == (1, {"oversize": 1})
    async with running(spool_in(tmp_path / "open", 20_000), when_full=WhenFull.OPEN) as journal:
        assert not await journal.record(events, NOW_MS)
        assert journal.holes == 2


async def test_an_event_that_the_broker_refuses_is_a_counted_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may take less than the largest one, and what the broker measures is compressed."""
    taken: list[bytes] = []

    async def connect(delivery: EventDelivery) -> PickyProducer:
        return PickyProducer(taken)

    monkeypatch.setattr(EventDelivery, "_connect", connect)
    async with running(spool_in(tmp_path / "spool")) as journal:
        assert await journal.record([event("t", 0), event("t", 1, 5_000), event("t", 2)], NOW_MS)
        await until(lambda: not journal.unacknowledged)
        assert (len(taken), journal.holes) == (2, 1)
    assert left_in(tmp_path / "spool") == []


@pytest.mark.parametrize(("is_cut", "holes"), [(False, 3), (True, 0)])
async def test_an_event_that_cannot_be_read_from_the_disk_is_a_counted_hole(
    tmp_path: Path, is_cut: bool, holes: int
) -> None:
    """But not one that was being written when the gateway was killed: nobody was told that it is recorded."""
    async with running(spool_in(tmp_path)) as journal:
        assert await journal.record([event("t", number) for number in range(3)], NOW_MS)
    (segment,) = tmp_path.glob("*.spool")
    data = segment.read_bytes()
    segment.write_bytes(data[:-1] if is_cut else data[:60] + bytes([data[60] ^ 1]) + data[61:])
    async with running(Spool(tmp_path, 1 << 26, CLUSTER, lambda path, loss: journal.lost(path, loss))) as journal:
        await until(lambda: bool(journal._counters.dropped()))
        assert journal.holes == holes


async def test_no_event_overtakes_those_that_wait_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[int | None] = []

    def noted(ticket: int, topic: str, message: Message) -> None:
        offered.append(envelope_of(message.headers).sequence)

    async with running(spool_in(tmp_path / "spool"), memory_bytes=1_000) as journal:
        monkeypatch.setattr(journal._delivery, "offer", noted)
        monkeypatch.setattr(journal._delivery, "pending_bytes", 1_000)
        assert await journal.record([event("t", 0), event("t", 1)], NOW_MS)
        monkeypatch.setattr(journal._delivery, "pending_bytes", 0)  # Kafka has taken what came before
        assert await journal.record([event("t", 2)], NOW_MS)
        await until(lambda: len(offered) == 3)
    assert offered == [0, 1, 2]


async def test_events_of_a_caller_that_leaves_are_written(tmp_path: Path) -> None:
    async with running(spool_in(tmp_path / "spool")) as journal:
        call = asyncio.create_task(journal.record([event("t", 0)], NOW_MS))
        await asyncio.sleep(0)
        call.cancel()
        assert await journal.record([event("t", 1)], NOW_MS)
    assert places(left_in(tmp_path / "spool")) == {"t": [0, 1]}


async def test_what_is_recorded_just_before_the_end_is_written(tmp_path: Path) -> None:
    async with running(spool_in(tmp_path / "spool")) as journal:
        calls = [asyncio.create_task(journal.record([event("t", seq)], NOW_MS)) for seq in range(2)]
        await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.gather(*calls), 20) == [True] * 2
    assert places(left_in(tmp_path / "spool")) == {"t": [0, 1]}


async def test_files_are_removed_in_the_order_of_their_events(tmp_path: Path) -> None:
    """A killed gateway thus leaves everything after the oldest event that it leaves."""
    async with running(spool_in(tmp_path / "spool")) as journal:
        assert await journal.record([event("t", n) for n in range(4)], NOW_MS)
        async with asyncio.timeout(20):
            while journal._delivery.pending < 4:  # noqa: ASYNC110 - another thread reads them from the disk
                await asyncio.sleep(0.01)
        async with journal._order:
            for ticket, done in ((2, 0), (1, 0), (0, 3), (3, 4)):
                journal._resolved(ticket)
                assert len(journal._done) == done


async def log_of(bootstrap: str, source: str) -> dict[str, list[int | None]]:
    """Sequence numbers by trajectory, in the log's order; fails if an id occurs with two places."""
    found: dict[str, list[int | None]] = defaultdict(list)
    seen: set[str] = set()
    async for record in read_to_end(bootstrap, EVENTS):
        envelope = envelope_of(record.headers)
        if envelope.source == source and envelope.id not in seen:
            seen.add(envelope.id)
            found[envelope.subject].append(envelope.sequence)
    return found


@pytest.mark.kafka
async def test_recorded_events_reach_kafka_and_no_file_stays(kafka: str, tmp_path: Path) -> None:
    source, folder = uuid7(), tmp_path / "spool"
    async with running(spool_in(folder), kafka, source=source, flush_s=60) as journal:
        for n in range(20):
            assert await journal.record([event(f"{source}-{i}", n) for i in range(5)], NOW_MS)
    assert await log_of(kafka, source) == {f"{source}-{i}": list(range(20)) for i in range(5)}
    assert list(folder.iterdir()) == []


@pytest.mark.kafka
@pytest.mark.parametrize("memory_bytes", [1, 1 << 26])
async def test_while_kafka_is_away_calls_complete_and_are_sent_in_order_afterwards(
    running_kafka: RunningKafka, kafka: str, tmp_path: Path, memory_bytes: int
) -> None:
    source, folder = uuid7(), tmp_path / "spool"
    async with running(spool_in(folder), kafka, source=source, memory_bytes=memory_bytes, flush_s=90) as journal:
        assert await journal.record([event(f"{source}-0", 0)], NOW_MS)
        running_kafka.freeze()
        try:
            for n in range(1, 1_000):
                assert await journal.record([event(f"{source}-{n % 2}", n)], NOW_MS)
        finally:
            running_kafka.freeze(False)
    found = await log_of(kafka, source)
    assert found == {f"{source}-0": [*range(0, 1_000, 2)], f"{source}-1": [*range(1, 1_000, 2)]}
    assert list(folder.iterdir()) == []


@pytest.mark.kafka
async def test_what_a_killed_gateway_left_is_sent_before_what_follows_it(kafka: str, tmp_path: Path) -> None:
    source, folder = uuid7(), tmp_path / "spool"
    for first in range(0, 2_000, 1_000):
        async with running(spool_in(folder), source=source) as journal:  # without Kafka, twice
            for n in range(first, first + 1_000, 100):
                events = [event(f"{source}-{i}", number) for number in range(n, n + 100) for i in range(3)]
                assert await journal.record(events, NOW_MS)
    async with running(spool_in(folder), kafka, source=source, flush_s=60) as journal:
        for n in range(2_000, 2_100):
            assert await journal.record([event(f"{source}-{i}", n) for i in range(3)], NOW_MS)
        async with asyncio.timeout(60):
            while any(folder.glob("*.spool")):  # noqa: ASYNC110 - files
                await asyncio.sleep(0.1)
    assert await log_of(kafka, source) == {f"{source}-{i}": list(range(2_100)) for i in range(3)}


KILLED = """
import asyncio, sys
from pathlib import Path
from tests.agents.gateway.test_journal import NOW_MS, event, running, spool_in

async def main(bootstrap, folder, source):
    async with running(spool_in(Path(folder)), bootstrap, source=source) as journal:
        for n in range(100_000):
            assert await journal.record([event(f"{source}-{n % 7}", n)], NOW_MS)
            print(n, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.kafka
async def test_everything_that_was_recorded_before_a_kill_is_sent_by_the_next_gateway(
    kafka: str, tmp_path: Path
) -> None:
    source, folder = uuid7(), tmp_path / "spool"
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, kafka, str(folder), source,
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert gateway.stdout is not None
    recorded = -1
    async for line in gateway.stdout:
        recorded = int(line)
        if recorded == 2_000:
            gateway.kill()
    await gateway.wait()
    assert recorded >= 2_000
    async with running(spool_in(folder), kafka, source=source) as journal:
        async with asyncio.timeout(90):
            while any(folder.glob("*.spool")):  # noqa: ASYNC110 - files
                await asyncio.sleep(0.1)
        assert journal.holes == 0
    found = await log_of(kafka, source)
    numbers = {number for each in found.values() for number in each}
    assert numbers >= set(range(recorded + 1))
    assert all(len(set(each)) == len(each) for each in found.values())
