"""How the sink reads its partitions, against a real broker: whatever happens to the log, every record once."""

import asyncio
import itertools
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.kafka.clients import open_admin, open_consumer, open_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, EVENTS, FEEDBACK, Topic
from headrace.schemas.wire import decode_payload
from headrace.streams.clickhouse import sink, write_cycle
from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.cuts import CommitMetadata, InsertRange
from headrace.streams.clickhouse.database import RetryingClient
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.write_cycle import WriteCycle, pause_s
from headrace.streams.raw import LogRecord
from headrace.streams.reading import partition_reader
from headrace.streams.reading.partition_reader import PartitionReader
from tests.conftest import RunningKafka
from tests.streams.assembly.test_unreadable_batch import BOMB, BOMBS, inflating
from tests.streams.clickhouse.test_sink import count, event, events_of, running_sink, send_events, until
from tests.streams.native.built import needs_speedups

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of records of each read."""
    original, counts = AssignedPartitions.read, list[int]()

    async def counted(self: AssignedPartitions, most: int) -> dict[TopicPartition, Sequence[LogRecord]]:
        found = await original(self, most)
        counts.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(AssignedPartitions, "read", counted)
    return counts


async def send_to(bootstrap: str, topic: Topic, name: str, count: int, partition: int = 1) -> None:
    async with open_producer(bootstrap) as producer:
        for number in range(count):
            await (await send(producer, topic, event(f"{name}-{number}", 0), partition=partition))


async def end_of(bootstrap: str, place: TopicPartition) -> int:
    async with open_consumer(bootstrap) as consumer:
        return int((await consumer.end_offsets([place]))[place])


async def until_committed(bootstrap: str, group: str, place: TopicPartition, offset: int) -> None:
    while (await committed_offsets(bootstrap, group, [place]))[place].offset != offset:  # noqa: ASYNC110 - at the broker
        await asyncio.sleep(0.2)


@needs_speedups
async def test_only_the_readers_fetch_events_also_after_a_rebalance(kafka: str) -> None:
    await send_events(kafka, "paused", 500)
    await send_to(kafka, FEEDBACK, "paused", 5)
    async with open_consumer(kafka, group="paused") as first, open_consumer(kafka, group="paused") as second:
        members = [(AssignedPartitions(kafka, each), each) for each in (first, second)]
        places = {*await partitions_of(first, EVENTS), *await partitions_of(first, FEEDBACK)}
        for joined in (1, 2):
            assigned, consumer = members[joined - 1]
            consumer.subscribe([EVENTS.name, FEEDBACK.name], listener=assigned)
            taking_part = members[:joined]
            while {place for _, each in taking_part for place in each.assignment()} != places or not all(
                len(each.assignment()) == len(places) / joined for _, each in taking_part
            ):
                for _, each in taking_part:
                    await each.getmany(timeout_ms=20)
            found: dict[TopicPartition, list[int]] = {place: [] for place in places}
            for assigned, consumer in taking_part:
                await assigned.start(dict.fromkeys(consumer.assignment(), 0))
            while sum(map(len, found.values())) < 505:
                for assigned, consumer in taking_part:
                    for place, records in (await assigned.read(100)).items():
                        found[place] += [record.offset for record in records]
                        assert await assigned.position(place) == found[place][-1] + 1
                    by_consumer = {place.topic for place in consumer._fetcher._records}
                    assert by_consumer <= {FEEDBACK.name}
                await asyncio.sleep(0.02)
            assert all(offsets == list(range(len(offsets))) for offsets in found.values())
        for assigned, _ in members:
            await assigned.close()


async def test_the_sink_reads_without_the_extension_module(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "SPEEDUPS", None)
    await send_events(kafka, "messages", 3_000)
    async with running_sink(SinkConfig(kafka, clickhouse, group="messages", batch_records=256)):
        await until(clickhouse, events_of("messages"), 3_000)
    assert count(clickhouse, events_of("messages")) == 3_000


async def test_the_committed_offset_is_past_transaction_markers(kafka: str, clickhouse: str) -> None:
    place = TopicPartition(EVENTS.name, 0)
    async with open_producer(kafka, transactional_id="markers") as producer:
        for number in range(3):
            async with producer.transaction():
                await send(producer, EVENTS, event(f"marked-{number}", 0), partition=0)
    async with running_sink(SinkConfig(kafka, clickhouse, group="markers")):
        await until_committed(kafka, "markers", place, await end_of(kafka, place))
    assert count(clickhouse, events_of("marked")) == 3


@pytest.mark.parametrize(("value", "states_size"), BOMBS.values(), ids=list(BOMBS))
async def test_a_batch_that_cannot_be_decompressed_is_skipped(
    kafka: str, clickhouse: str, caplog: pytest.LogCaptureFixture, value: bytes, states_size: bool
) -> None:
    place, group = TopicPartition(EVENTS.name, 1), f"bomb{len(value)}"
    before, behind = f"before{len(value)}", f"behind{len(value)}"
    await send_to(kafka, EVENTS, before, 3)
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await until(clickhouse, events_of(before), 3)
        offset = await inflating(kafka, value=value, states_size=states_size, partition=1)
        await send_to(kafka, EVENTS, behind, 3)
        await until(clickhouse, events_of(behind), 3)
        await until_committed(kafka, group, place, await end_of(kafka, place))
    assert count(clickhouse, events_of(before)) == count(clickhouse, events_of(behind)) == 3
    assert f"events[1]: the batch at {offset} to {offset} cannot be decompressed" in caplog.text


async def test_records_that_a_rebalance_drops_are_read_again(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance while a batch is skipped and an insert is in flight, whose commit must not cover dropped records."""
    inserting, may_insert, dropped = asyncio.Event(), asyncio.Event(), asyncio.Event()
    insert, skip_batch = RetryingClient.insert, AssignedPartitions._skip_batch

    async def slow_insert(self: RetryingClient, *arguments: Any, **named: Any) -> None:
        inserting.set()
        await may_insert.wait()
        await insert(self, *arguments, **named)

    async def skip_and_rebalance(self: AssignedPartitions, *arguments: Any) -> None:
        if not dropped.is_set():
            await send_to(kafka, EVENTS, "dropped", 5, partition=0)
            await asyncio.sleep(1)  # until they are fetched
            self.generation += 2
        await skip_batch(self, *arguments)
        dropped.set()

    monkeypatch.setattr(RetryingClient, "insert", slow_insert)
    monkeypatch.setattr(AssignedPartitions, "_skip_batch", skip_and_rebalance)
    async with running_sink(SinkConfig(kafka, clickhouse, group="dropped")):
        await send_to(kafka, EVENTS, "in-flight", 3, partition=0)
        await inserting.wait()
        await inflating(kafka, value=BOMB, partition=1)
        await dropped.wait()
        may_insert.set()
        await until(clickhouse, events_of("dropped"), 5)
    assert count(clickhouse, events_of("in-flight")) == 3


class FailingReader:
    """Raises instead of reading; its error says that the log has no such offset."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self.close, self.position, self.end = reader.close, reader.position, reader.end

    def read(self, most: int) -> Sequence[LogRecord]:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))


async def test_only_the_partition_that_cannot_be_read_is_started_again_after_growing_pauses(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original, starts = AssignedPartitions._reader_from, Counter[int]()

    def failing(self: AssignedPartitions, place: TopicPartition, offset: int) -> Any:
        starts[place.partition] += 1
        reader = original(self, place, offset)
        return FailingReader(reader) if place.partition == 2 and starts[2] <= 3 else reader

    monkeypatch.setattr(AssignedPartitions, "_reader_from", failing)
    monkeypatch.setattr(sink, "_RESTART_S", 0.5)
    async with running_sink(SinkConfig(kafka, clickhouse, group="failing")):
        await send_to(kafka, EVENTS, "failing", 3, partition=2)
        while starts[2] < 2:  # noqa: ASYNC110 - in another task
            await asyncio.sleep(0.01)
        await send_to(kafka, EVENTS, "healthy", 3, partition=0)
        await until(clickhouse, events_of("healthy"), 3)
        assert count(clickhouse, events_of("failing")) == 0
        await until(clickhouse, events_of("failing"), 3)
    assert (starts[0], starts[2]) == (1, 4)
    pauses = re.findall(r"events\[(\d)\] is read again from its committed offset in (\S+) s", caplog.text)
    assert pauses == [("2", "0.5"), ("2", "1"), ("2", "2")]


@pytest.mark.parametrize("topic", [EVENTS, FEEDBACK], ids=lambda topic: topic.name)
async def test_a_commit_behind_the_log_end_starts_at_the_log_start(kafka: str, clickhouse: str, topic: Topic) -> None:
    """As after the topic was recreated."""
    place, group = TopicPartition(topic.name, 2), f"recreated-{topic.name}"
    await send_to(kafka, topic, group, 3, partition=2)
    async with open_consumer(kafka, group=group) as consumer:
        consumer.assign([place])
        await consumer.commit({place: 10**6})
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await until_committed(kafka, group, place, await end_of(kafka, place))


@pytest.mark.parametrize("topic", [EVENTS, FEEDBACK], ids=lambda topic: topic.name)
async def test_records_deleted_unread_while_the_sink_runs_raise_one_alert(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, topic: Topic
) -> None:
    caplog.set_level(logging.WARNING)
    place, group = TopicPartition(topic.name, 3), f"deleted-{topic.name}"
    await send_to(kafka, topic, group, 10, partition=3)
    end = await end_of(kafka, place)
    async with open_consumer(kafka, group=group) as consumer:
        consumer.assign([place])
        await consumer.commit({place: end - 8})
    original = AssignedPartitions.start

    async def after_deletion(self: AssignedPartitions, offsets: Mapping[TopicPartition, int]) -> None:
        """The partition's start moves between the sink's look at it and the first fetch."""
        if place in offsets:
            async with open_admin(kafka) as admin:
                await admin.delete_records({place: RecordsToDelete(before_offset=end - 3)})
        await original(self, offsets)

    monkeypatch.setattr(AssignedPartitions, "start", after_deletion)
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await until_committed(kafka, group, place, end)
    if topic is EVENTS:
        assert count(clickhouse, events_of(group)) == 3
    assert f"{topic.name}[3] is read again from its committed offset in 1 s" in caplog.text
    alerts = [decode_payload(Alert.TYPE, record.value) async for record in read_to_end(kafka, ALERTS)]
    expired = [each for each in alerts if isinstance(each, Alert) and each.kind == "records_expired"]
    assert [each.details["unread"] for each in expired if each.details["topic"] == topic.name] == [5]


@pytest.mark.parametrize("topic", [EVENTS, FEEDBACK], ids=lambda topic: topic.name)
async def test_the_committed_offset_passes_a_transaction_that_is_aborted_later(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch, topic: Topic
) -> None:
    """Once retention deletes it, it would be reported as unread."""
    monkeypatch.setattr(write_cycle, "_PASSED_S", 0.5)
    place, group = TopicPartition(topic.name, 0), f"aborted-{topic.name}"
    await send_to(kafka, topic, group, 3, partition=0)
    before = await end_of(kafka, place)
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await until_committed(kafka, group, place, before)
        async with open_producer(kafka, transactional_id=group) as producer:
            await producer.begin_transaction()
            for number in range(24):
                await (await send(producer, topic, event(f"undone-{number}", 0), partition=0))
            await producer.abort_transaction()
        assert await end_of(kafka, place) == before + 25
        await until_committed(kafka, group, place, before + 25)
    assert count(clickhouse, events_of("undone")) == 0


async def test_an_announced_batch_whose_first_records_expired_is_stored_once(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``kill -9`` between the insert and the commit."""
    place, config = TopicPartition(EVENTS.name, 2), SinkConfig(kafka, clickhouse, group="half-expired")
    start = await end_of(kafka, place)
    async with open_consumer(kafka, group=config.group) as consumer:
        consumer.assign([place])
        await consumer.commit({place: start})
    await send_to(kafka, EVENTS, "half-expired", 10, partition=2)
    commit, inserted = TopicCommits.commit, asyncio.Event()

    async def announcements_only(self: TopicCommits, commits: Mapping[TopicPartition, Commit]) -> None:
        if place in commits and not commits[place].ranges:
            inserted.set()
            await asyncio.Event().wait()
        await commit(self, commits)

    monkeypatch.setattr(TopicCommits, "commit", announcements_only)
    killed = asyncio.create_task(run_sink(config, stop=asyncio.Event(), ready=lambda: None))
    await inserted.wait()
    killed.cancel()
    await asyncio.wait({killed})
    monkeypatch.setattr(TopicCommits, "commit", commit)
    assert count(clickhouse, events_of("half-expired")) == 10
    async with open_admin(kafka) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=start + 4)})
    async with running_sink(config):
        await send_to(kafka, EVENTS, "half-expired-later", 5, partition=2)
        await until_committed(kafka, config.group, place, start + 15)
    assert count(clickhouse, events_of("half-expired", "uniqExact(id)")) == 15
    assert count(clickhouse, events_of("half-expired")) == 15
    alerts = [decode_payload(Alert.TYPE, record.value) async for record in read_to_end(kafka, ALERTS)]
    (details,) = [
        each.details for each in alerts if isinstance(each, Alert) and each.details.get("announced") == start + 10
    ]
    assert (details["committed"], details["begin"], details["unread"]) == (start, start + 4, 4)


async def test_what_was_read_is_written_before_its_partition_is_started_again(
    kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may have deleted it from Kafka meanwhile."""
    place, group = TopicPartition(EVENTS.name, 1), "held"
    async with open_consumer(kafka, group=group) as consumer:
        consumer.assign([place])
        await consumer.commit({place: await end_of(kafka, place)})
    await send_to(kafka, EVENTS, "held", 10, partition=1)
    end = await end_of(kafka, place)
    has_read, fails = asyncio.Event(), asyncio.Event()
    original = AssignedPartitions.unreadable

    def unreadable(self: AssignedPartitions) -> dict[TopicPartition, Exception]:
        found = original(self)
        reader = self._readers.get(place)
        if reader is not None and reader.position >= end:
            has_read.set()
        if fails.is_set():
            fails.clear()
            found[place] = KafkaException(KafkaError(KafkaError._FAIL))
        return found

    monkeypatch.setattr(AssignedPartitions, "unreadable", unreadable)
    async with running_sink(SinkConfig(kafka, clickhouse, group=group, linger_s=600)):
        await has_read.wait()
        async with open_admin(kafka) as admin:
            await admin.delete_records({place: RecordsToDelete(before_offset=end)})
        fails.set()
        await until(clickhouse, events_of("held"), 10)


async def test_an_announced_cut_behind_the_log_end_does_not_hold_records(kafka: str, clickhouse: str) -> None:
    """As after a topic was recreated, or a broker lost records."""
    place, group = TopicPartition(FEEDBACK.name, 1), "announced-too-far"
    start = await end_of(kafka, place)
    await send_to(kafka, FEEDBACK, group, 3, partition=1)
    async with open_consumer(kafka, group=group) as consumer:
        consumer.assign([place])
        announced = CommitMetadata(ranges=(InsertRange(1, start, start + 1_000),))
        await consumer.commit({place: (start, str(announced))})
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await until_committed(kafka, group, place, await end_of(kafka, place))


async def test_an_idle_sink_waits_between_reads(kafka: str, clickhouse: str, reads: list[int]) -> None:
    await send_events(kafka, "idle", 100)
    async with running_sink(SinkConfig(kafka, clickhouse, group="idle", linger_s=0.5)):
        await until(clickhouse, events_of("idle"), 100)
        before = len(reads)
        await asyncio.sleep(2.0)
        assert 1 <= len(reads) - before <= 4 * 10 + 1


async def test_the_sink_waits_for_a_broker_that_is_away(
    running_kafka: RunningKafka, clickhouse: str, reads: list[int]
) -> None:
    kafka = running_kafka.bootstrap
    async with running_sink(SinkConfig(kafka, clickhouse, group="away", linger_s=0.5)):
        await send_events(kafka, "away1", 1_000)
        await until(clickhouse, events_of("away1"), 1_000)
        await asyncio.to_thread(running_kafka.freeze)
        before = len(reads)
        await asyncio.sleep(15.0)  # longer than the session
        assert len(reads) - before <= 30 * 10 + 1, "the sink does not spin"
        await asyncio.to_thread(running_kafka.freeze, False)
        await running_kafka.stays_listed()
        await send_events(kafka, "away2", 1_000)
        await until(clickhouse, events_of("away2"), 1_000)
        await asyncio.to_thread(running_kafka.kill)
        await asyncio.sleep(5.0)
        await asyncio.to_thread(running_kafka.start)
        await send_events(kafka, "away3", 1_000)
        await until(clickhouse, events_of("away3"), 1_000)
    for name in ("away1", "away2", "away3"):
        assert count(clickhouse, events_of(name)) == 1_000


async def test_after_a_slow_write_the_sink_pauses(kafka: str, clickhouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, delays = list[tuple[float, float, float]](), itertools.cycle([0.2, 1.6])
    write, insert = WriteCycle._write, RetryingClient.insert

    async def timed(self: Any, batches: Any) -> None:
        begun = monotonic()
        await write(self, batches)
        ended = monotonic()
        writes.append((begun, ended, self._pauses_until - ended))

    async def slow_insert(self: RetryingClient, *arguments: Any, **named: Any) -> None:
        await asyncio.sleep(next(delays))
        await insert(self, *arguments, **named)

    async with running_sink(SinkConfig(kafka, clickhouse, group="pauses", linger_s=0.25)):
        await send_to(kafka, EVENTS, "before", 1, partition=0)
        await until(clickhouse, events_of("before"), 1)
        monkeypatch.setattr(WriteCycle, "_write", timed)
        monkeypatch.setattr(RetryingClient, "insert", slow_insert)
        while len(writes) < 6:
            await send_to(kafka, EVENTS, "pauses", 1, partition=0)
        counted = writes[:]  # without the last one, which does not wait: the sink stops
    pauses = [begun - ended for (_, ended, _), (begun, _, _) in itertools.pairwise(counted)]
    expected = [pause_s(ended - begun, 0.25, SinkConfig("", "").pause_share) for begun, ended, _ in counted]
    assert all(pause >= each - 0.01 for pause, each in zip(pauses, expected, strict=False))
    assert max(ended - begun for begun, ended, _ in counted) >= 1.6
    # The pause that was asked for, because on a busy machine the real one may last longer.
    assert all(asked <= each + 0.001 for (_, _, asked), each in zip(counted, expected, strict=True))


def test_the_pause_grows_faster_than_the_time_of_a_write_and_is_bounded() -> None:
    assert pause_s(0.3, 0.3, 1.0) == pytest.approx(0.3)
    assert pause_s(0.1, 0.3, 1.0) == pytest.approx(0.1 / 3)
    assert pause_s(0.6, 0.3, 0.5) == pytest.approx(0.6)
    assert pause_s(60.0, 0.3, 1.0) == pytest.approx(3 * 0.3)
    assert pause_s(60.0, 0.3, 0.0) == 0.0
