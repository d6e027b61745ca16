"""Offsets that the broker forgot, and records that retention deleted: no duplicates, and no silent loss."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka.admin import AdminClient

from headrace.schemas.kafka.clients import open_admin, open_consumer, open_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.schemas.wire import decode
from headrace.streams.assembly import partition_runner
from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.lost_offset import check_written_trajectories
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.lost_offset import LOG_ENDS_EARLY, TOPIC_RECREATED, LostOffsetError
from headrace.streams.raw import LogRecord, StoredRecord
from headrace.streams.reading.partition_reader import PartitionReader, start_reader
from tests.expired import delete_before, expired_alerts
from tests.streams.builders import session
from tests.streams.clickhouse.test_deleted_topics import recreate

PARTITION = 2
PLACE = TopicPartition(EVENTS.name, PARTITION)


def test_more_trajectories_than_fit_are_refused_with_the_setting_to_raise() -> None:
    limits = FoldLimits(remember=10, max_remembered=100)
    for few in (0, 100):
        check_written_trajectories(limits, few, PLACE)
    with pytest.raises(LostOffsetError, match=r"assemble\.max_remembered=202 .* offsets\.retention\.minutes"):
        check_written_trajectories(limits, 101, PLACE)


async def produce(bootstrap: str, records: list[StoredRecord]) -> None:
    async with open_producer(bootstrap) as producer:
        for record in records:
            options: dict[str, Any] = {"headers": list(record.headers), "partition": PARTITION}
            await (await producer.send(EVENTS.name, key=record.key, value=record.value, **options))


async def written(bootstrap: str) -> Counter[str]:
    """Number of records of each trajectory."""
    read = [decode(record.headers, record.value)[1] async for record in read_to_end(bootstrap, TRAJECTORIES)]
    return Counter(each.trajectory_id for each in read if isinstance(each, Trajectory) and not each.defects)


@asynccontextmanager
async def assembling(bootstrap: str, **changes: Any) -> AsyncIterator[asyncio.Task[None]]:
    """An assembler that has recovered, or ended; stopped at the end."""
    stop, ready = asyncio.Event(), asyncio.Event()
    config = AssemblerConfig(bootstrap, commit_interval_s=0.05, **changes)
    task = asyncio.create_task(run_assembler(config, stop=stop, ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield task
    finally:
        stop.set()
        waiting.cancel()
        await task


async def until_written(bootstrap: str, names: set[str]) -> None:
    async with asyncio.timeout(60):
        while not names <= (await written(bootstrap)).keys():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)


async def forget_offsets(bootstrap: str, group: str) -> None:
    """Delete the offsets of a group, as a broker does after ``offsets.retention.minutes`` without a member."""

    def delete() -> None:
        client = AdminClient({"bootstrap.servers": bootstrap})
        for deleted in client.delete_consumer_groups([group]).values():
            deleted.result(30)

    await asyncio.to_thread(delete)


@pytest.mark.kafka
async def test_an_assembler_whose_offset_was_forgotten_writes_nothing_twice(kafka: str) -> None:
    """The assembler remembers one ID only; without this refusal earlier output would be written a second time."""
    names = {f"old-{number}" for number in range(30)}
    async with assembling(kafka, remember=1):
        for name in sorted(names):
            await produce(kafka, session(name, "ask"))
        begun, rest = session("begun", "ask")[:2], session("begun", "ask")[2:]
        await produce(kafka, begun)
        await until_written(kafka, names)
    await forget_offsets(kafka, "assemble")
    async with assembling(kafka, remember=1):
        await produce(kafka, [*rest, *session("new", "ask")])
        await until_written(kafka, names | {"begun", "new"})
        await produce(kafka, session("last", "ask"))
        await until_written(kafka, {"last"})
    assert await written(kafka) == Counter(names | {"begun", "new", "last"})
    assert not [record async for record in read_to_end(kafka, DEAD_LETTERS)]
    # With a committed offset, the next start is an ordinary one.
    async with assembling(kafka, remember=1):
        await produce(kafka, session("after", "ask"))
        await until_written(kafka, {"after"})
    assert set((await written(kafka)).values()) == {1}


@pytest.mark.kafka
async def test_more_output_than_can_be_remembered_is_refused_with_the_fix(kafka: str) -> None:
    await forget_offsets(kafka, "assemble")
    with pytest.raises(LostOffsetError, match=r"assemble\.max_remembered="):
        async with assembling(kafka, remember=1, max_remembered=2) as task:
            await task
    assert set((await written(kafka)).values()) == {1}


@pytest.mark.kafka
async def test_unread_expired_records_raise_an_alert(kafka: str) -> None:
    async with open_consumer(kafka) as consumer:
        end = (await consumer.end_offsets([PLACE]))[PLACE]
        await produce(kafka, session("expired", "ask"))
        begin = (await consumer.end_offsets([PLACE]))[PLACE]
    async with open_producer(kafka, transactional_id="place") as producer, producer.transaction():
        await producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(end, "")}, "assemble")
    async with open_admin(kafka) as admin:
        await admin.delete_records({PLACE: RecordsToDelete(before_offset=begin)})
    async with assembling(kafka):
        await produce(kafka, session("kept", "ask"))
        await until_written(kafka, {"kept"})
    payloads = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, ALERTS)]
    alerts = [each for each in payloads if isinstance(each, Alert) and each.kind == "records_expired"]
    assert [alert.details["unread"] for alert in alerts] == [begin - end]
    assert f"events[{PARTITION}] starts at {begin}" in alerts[0].message


class StalledReader:
    """A reader whose connection stalls while ``stalled`` is set: what is in the log by then is read afterwards."""

    def __init__(self, stalled: asyncio.Event, *arguments: Any) -> None:
        self._stalled = stalled
        self._arguments = arguments
        self._reader: PartitionReader | None = start_reader(*arguments)
        self.position: int = arguments[-1]
        self.end: int | None = None

    def read(self, most: int = 200) -> Sequence[LogRecord]:
        if self._stalled.is_set():
            self.close()
            return []
        if self._reader is None:
            self._reader = start_reader(*self._arguments[:-1], self.position)
        try:
            return self._reader.read(most)
        finally:
            self.position, self.end = self._reader.position, self._reader.end

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@pytest.mark.kafka
async def test_records_that_expire_while_the_assembler_runs_raise_an_alert_and_open_trajectories_are_kept(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = asyncio.Event()

    @asynccontextmanager
    async def open_stalling(*arguments: Any) -> AsyncIterator[StalledReader]:
        reader = StalledReader(stalled, *arguments)
        yield reader
        reader.close()

    monkeypatch.setattr(partition_runner, "open_reader", open_stalling)
    before = await expired_alerts(kafka, SOURCE)
    begun, rest = session("open", "ask")[:2], session("open", "ask")[2:]
    async with assembling(kafka):
        await produce(kafka, [*session("read", "ask"), *begun])
        await until_written(kafka, {"read"})
        stalled.set()
        await asyncio.sleep(0.5)
        await produce(kafka, session("unread", "ask"))
        async with open_consumer(kafka) as consumer:
            begin = (await consumer.end_offsets([PLACE]))[PLACE]
        await produce(kafka, [*rest, *session("later", "ask")])
        await delete_before(kafka, PLACE, begin)
        stalled.clear()
        await until_written(kafka, {"open", "later"})
    assert (await written(kafka))["unread"] == 0
    (lost,) = (await expired_alerts(kafka, SOURCE))[len(before) :]
    assert lost[:3] == (EVENTS.name, PARTITION, begin)
    assert len(session("unread", "ask")) <= lost[3] <= len(session("unread", "ask")) + 2, "and a tick or two"


async def replaced_alerts(bootstrap: str) -> list[tuple[str, int]]:
    """Kind and committed offset of each record with an alert about another log."""
    payloads = [decode(record.headers, record.value)[1] async for record in read_to_end(bootstrap, ALERTS)]
    found = [each for each in payloads if isinstance(each, Alert) and each.source == SOURCE]
    return [(each.kind, each.details["committed"]) for each in found if each.kind in (TOPIC_RECREATED, LOG_ENDS_EARLY)]


async def commit_place(bootstrap: str, group: str, offset: int, metadata: str = "") -> None:
    async with open_producer(bootstrap, transactional_id="place") as producer, producer.transaction():
        await producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(offset, metadata)}, group)


@pytest.mark.kafka
async def test_an_offset_beyond_the_end_of_the_log_is_refused_with_the_fix(kafka: str) -> None:
    await commit_place(kafka, "assemble", 10**9)
    with pytest.raises(LostOffsetError, match=r"--delete --group assemble"):
        async with assembling(kafka) as task:
            await task
    assert await replaced_alerts(kafka) == [(LOG_ENDS_EARLY, 10**9)]


@pytest.mark.kafka
async def test_a_commit_for_a_deleted_topic_is_refused_although_the_new_one_is_longer(kafka: str) -> None:
    """The broker may keep the commits of a deleted topic. Without them the assembler reads from the beginning."""
    group = "of-a-deleted-topic"
    await recreate(kafka, EVENTS)
    async with assembling(kafka, group=group):
        await produce(kafka, session("in-the-old", "ask"))
        await until_written(kafka, {"in-the-old"})
    ((_, commit),) = (await committed_offsets(kafka, group, [PLACE])).items()
    assert commit.offset > 0
    await recreate(kafka, EVENTS)
    for number in range(5):
        await produce(kafka, session(f"in-the-new-{number}", "ask"))
    before = await replaced_alerts(kafka)
    await commit_place(kafka, group, commit.offset, commit.metadata)
    with pytest.raises(LostOffsetError, match=rf"was deleted and created again.*--delete --group {group}"):
        async with assembling(kafka, group=group) as task:
            await task
    assert [kind for kind, _ in (await replaced_alerts(kafka))[len(before) :]] == [TOPIC_RECREATED]

    await forget_offsets(kafka, group)
    async with assembling(kafka, group=group):
        await until_written(kafka, {f"in-the-new-{number}" for number in range(5)})
    assert (await written(kafka))["in-the-old"] == 1
