"""Lag in records and in seconds, from values and on a real broker."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.topics import EVENTS, REWARDS
from headrace.streams import lag as lag_module
from headrace.streams.assembly.recovery import CommitMetadata
from headrace.streams.clickhouse.lag_row import lag_row
from headrace.streams.lag import (
    OTHERS_PER_PASS,
    ConsumerLag,
    GroupRotation,
    LagMeter,
    NextTimes,
    committed_position,
    lags,
    measure_lag,
)
from tests.clocks import with_producers_time

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)


def test_the_assemblers_position_is_the_next_record_not_the_oldest_open_trajectory() -> None:
    metadata = CommitMetadata(next=70, stream_ms=5, output=3).to_metadata()
    assert committed_position(OffsetAndMetadata(40, metadata)) == 70


def test_the_position_of_an_assembler_that_was_moved_ahead_is_where_it_was_moved_to() -> None:
    """It continues there, whatever the metadata of an earlier commit says."""
    metadata = CommitMetadata(next=70, stream_ms=5, output=3).to_metadata()
    assert committed_position(OffsetAndMetadata(90, metadata)) == 90


def test_the_position_of_other_groups_is_their_commit() -> None:
    assert committed_position(OffsetAndMetadata(40, "")) == 40
    assert committed_position(OffsetAndMetadata(40, '{"v": 9}')) == 40


def test_lag_is_the_distance_to_the_end_and_the_age_of_the_next_record() -> None:
    found = lags({"g": {P0: 10, P1: 7}}, {P0: 15, P1: 7}, {(P0, 10): 4_000}, 9_500)
    assert found == [ConsumerLag("g", "events", 0, 5, 5.5, 10), ConsumerLag("g", "events", 1, 0, 0.0, 7)]


def test_a_partition_with_markers_of_transactions_only_has_no_lag() -> None:
    found = lags({"g": {P0: 10, P1: 7}}, {P0: 15, P1: 9}, {(P1, 7): 1_000}, 2_000, {(P0, 10)})
    assert found == [ConsumerLag("g", "events", 0, 0, 0.0, 10), ConsumerLag("g", "events", 1, 2, 1.0, 7)]


def test_a_group_with_markers_only_before_it_hides_no_lag_of_another_one() -> None:
    found = lags({"done": {P0: 12}, "slow": {P0: 10}}, {P0: 15}, {(P0, 10): 1_000}, 2_000, {(P0, 12)})
    assert [(lag.group, lag.records, lag.seconds) for lag in found] == [("done", 0, 0.0), ("slow", 5, 1.0)]


def test_a_partition_without_a_commit_or_without_an_end_has_no_lag() -> None:
    assert lags({"g": {P0: -1, P1: 3}}, {P0: 15}, {}, 0) == []


def test_a_partition_that_lags_makes_no_other_one_lag() -> None:
    """Not one without records, nor one that is behind by a record of the same moment, nor that of another group."""
    found = lags(
        {"slow": {P0: 0, P1: 0}, "fast": {P0: 2, P1: 0}},
        {P0: 3, P1: 1},
        {(P0, 0): 1_000, (P0, 2): 9_000, (P1, 0): 9_000},
        9_000,
    )
    assert {(lag.group, lag.partition): (lag.records, lag.seconds) for lag in found} == {
        ("slow", 0): (3, 8.0),
        ("slow", 1): (1, 0.0),
        ("fast", 0): (1, 0.0),
        ("fast", 1): (1, 0.0),
    }


def test_groups_behind_records_of_one_time_lag_by_the_same_seconds() -> None:
    found = lags({"b": {P1: 5, P0: 1}, "a": {P0: 2}}, {P0: 3, P1: 6}, {(P0, 1): 500, (P0, 2): 500, (P1, 5): 500}, 2_500)
    assert [(lag.group, lag.partition, lag.records, lag.seconds) for lag in found] == [
        ("a", 0, 1, 2.0),
        ("b", 0, 2, 2.0),
        ("b", 1, 1, 2.0),
    ]


def test_a_group_without_a_commit_in_one_partition_is_measured_in_the_others_from_their_first_record_on() -> None:
    found = lags({"g": {P0: -1, P1: 0}}, {P0: 15, P1: 3}, {(P1, 0): 1_000}, 3_000)
    assert found == [ConsumerLag("g", "events", 1, 3, 2.0, 0)]


def test_a_group_whose_position_is_behind_the_end_of_a_topic_that_was_made_anew_has_no_lag() -> None:
    assert lags({"g": {P0: 70}}, {P0: 5}, {}, 9_000) == [ConsumerLag("g", "events", 0, 0, 0.0, 70)]


def test_while_a_broker_is_too_slow_to_tell_a_records_time_that_of_the_last_known_one_holds() -> None:
    times, at = NextTimes(), {(P0, 10): 4_000, (P1, 7): 9_000}
    assert times.completed({"slow": at, "fast": [(P1, 7)]}, at) == at
    later = {"slow": [(P0, 12), (P1, 7)], "fast": [(P0, 14)]}
    assert times.completed(later, {}) == {(P0, 12): 4_000, (P1, 7): 9_000}, "the fast group has none in P0"
    assert times.completed(later, {(P0, 12): 6_000}) == {(P0, 12): 6_000, (P1, 7): 9_000}
    assert times.completed({"slow": [(P0, 13)]}, {}) == {(P0, 13): 6_000}
    both = {"slow": [(P0, 13)], "fast": [(P0, 13)]}
    assert times.completed({"slow": [(P0, 13)], "fast": [(P0, 12)]}, {(P0, 12): 7_000})[P0, 13] == 6_000
    assert times.completed(both, {}) == times.completed(dict(reversed(both.items())), {}) == {(P0, 13): 7_000}
    assert times.completed({"slow": [(P1, 8)]}, {}) == {}, "it was not behind in that partition any more"


class SlowBroker:
    """Admin client and consumer of a broker with a group that is behind in one partition, and has committed nothing in
    another one. Each answer about what comes next is the time
    of a record, ``None`` while the broker is too slow, or ``"markers"`` if no record follows."""

    def __init__(self, *answers: int | str | None) -> None:
        self.answers = list(answers)
        self._now: int | str | None = None
        self._offset = 10

    async def list_consumer_group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return {P0: OffsetAndMetadata(self._offset, ""), P1: OffsetAndMetadata(-1, "")}

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 90)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._now, self._offset = self.answers.pop(0), self._offset + 1

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert offset >= 0, "as the real one"

    async def position(self, partition: TopicPartition) -> int:
        return 90 if self._now == "markers" else 0

    async def getmany(self, *partitions: TopicPartition, **_: int) -> dict[TopicPartition, list[SimpleNamespace]]:
        if not isinstance(self._now, int):
            return {}
        return {P0: [SimpleNamespace(timestamp=time_ms) for time_ms in (self._now, 8_999)]}


async def test_a_group_that_is_behind_stays_so_while_its_broker_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_module, "_PEEK_S", 0.05)
    monkeypatch.setattr(lag_module, "_now_ms", lambda: 9_000)
    broker: Any = SlowBroker(None, 1_000, None, None, 4_000, None, "markers", None)

    @asynccontextmanager
    async def clients(_: str) -> AsyncIterator[tuple[Any, Any]]:
        yield broker, broker

    monkeypatch.setattr(lag_module, "_clients", clients)
    measured, stop = list[tuple[int, float]](), asyncio.Event()

    async def write(found: list[ConsumerLag], now_ms: int) -> None:
        measured.extend((lag.records, lag.seconds) for lag in found)
        if not broker.answers:
            stop.set()

    await LagMeter("b:9092", groups=["g"]).run(interval_s=0.0, stop=stop, write=write)
    seconds = [0.0, 8.0, 8.0, 8.0, 5.0, 5.0, 0.0, 0.0]
    assert measured == [(0 if number == 6 else 80 - number, each) for number, each in enumerate(seconds)]


def test_a_clock_that_runs_ahead_makes_no_negative_age() -> None:
    assert lags({"g": {P0: 1}}, {P0: 2}, {(P0, 1): 5_000}, 4_000)[0].seconds == 0


def test_a_row_has_the_tables_columns() -> None:
    assert lag_row(ConsumerLag("g", "events", 2, 5, 1.5), 7) == {
        "time": 7, "consumer_group": "g", "topic": "events", "partition": 2, "records": 5, "seconds": 1.5,
    }  # fmt: skip


def test_no_group_of_ours_is_left_out_however_many_others_there_are() -> None:
    others = [f"a-{number:04}" for number in range(10 * OTHERS_PER_PASS)]
    groups, asked = GroupRotation(), dict.fromkeys([*others, "ours", "zz"], 0)
    for turn in range(30):
        if turn == 5:
            asked["new"] = 0
        for name in (due := groups.due(asked)):
            asked[name] += 1
            groups.note(name, name in ("ours", "new") or (name == "zz" and turn > 10))
        assert turn == 0 or len(due) <= OTHERS_PER_PASS + 3
    assert (asked["ours"], asked["new"]) == (30, 25)
    # Other groups are queried again in turns, so a group that becomes ours is found.
    assert {asked[name] for name in others} <= {3, 4}
    assert asked["zz"] > 10
    assert "ours" not in groups.due(["zz"])


@pytest.mark.kafka
async def test_a_group_is_measured_behind_many_others(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        await (await producer.send(EVENTS.name, value=b"x", partition=1))
    partition = TopicPartition(EVENTS.name, 1)  # the next test counts what is in partition 0
    for group in (*(f"a-{number:03}" for number in range(OTHERS_PER_PASS + 6)), "zzz-last"):
        async with open_consumer(kafka, group=group) as consumer:
            consumer.assign([partition])
            await consumer.commit({partition: 0})
    assert "zzz-last" in {lag.group for lag in await measure_lag(kafka)}


@pytest.mark.kafka
async def test_two_groups_behind_in_one_partition_each_have_the_age_of_their_next_record(kafka: str) -> None:
    await asyncio.to_thread(with_producers_time, kafka, EVENTS)
    now_ms = time.time_ns() // 1_000_000
    async with open_producer(kafka) as producer:
        for age_s in (90, 60, 30):
            sent = await producer.send(EVENTS.name, value=b"x", partition=0, timestamp_ms=now_ms - age_s * 1000)
            await sent
    for group, offset in (("slow", 0), ("fast", 2), ("done", 3)):
        async with open_consumer(kafka, [EVENTS], group=group) as consumer:
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
            await consumer.commit({TopicPartition(EVENTS.name, 0): offset})
    meter, stop = LagMeter(kafka, groups=["slow", "fast", "done"]), asyncio.Event()
    measuring = asyncio.create_task(meter.run(interval_s=0.1, stop=stop))
    while not meter.latest:
        await asyncio.sleep(0.05)
        assert not measuring.done()
    stop.set()
    await measuring
    assert {lag.group for lag in await measure_lag(kafka)} >= {"slow", "fast", "done"}
    found = {lag.group: lag for lag in meter.latest}
    assert {name: lag.records for name, lag in found.items()} == {"slow": 3, "fast": 1, "done": 0}
    assert found["slow"].seconds - found["fast"].seconds == pytest.approx(60)
    assert found["fast"].seconds >= 30
    assert found["done"].seconds == 0


async def end_of(consumer: ReportingConsumer, place: TopicPartition, least: int) -> int:
    """The end of ``place``, once it is at least ``least``: markers are written after a commit has returned."""
    for _ in range(1_000):
        if (end := (await consumer.end_offsets([place]))[place]) >= least:
            return int(end)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{place} does not reach {least}")


@pytest.mark.kafka
async def test_an_idle_group_has_no_lag_behind_the_markers_of_transactions(kafka: str) -> None:
    place = TopicPartition(REWARDS.name, 0)
    async with open_producer(kafka, transactional_id="lag-markers") as producer:
        async with producer.transaction():
            await (await producer.send(REWARDS.name, value=b"x", partition=0))
        async with open_consumer(kafka, group="reads-transactions") as consumer:
            consumer.assign([place])
            await consumer.commit({place: 1})
            end = await end_of(consumer, place, 2)  # the record, and the marker after it
        (idle,) = await measure_lag(kafka, ["reads-transactions"])
        assert (idle.records, idle.seconds) == (0, 0.0)
        async with producer.transaction():
            await (await producer.send(REWARDS.name, value=b"y", partition=0))
        async with open_consumer(kafka) as consumer:
            await end_of(consumer, place, end + 2)
        (behind,) = await measure_lag(kafka, ["reads-transactions"])
        assert behind.records > 0
        await producer.begin_transaction()
        await (await producer.send(REWARDS.name, value=b"aborted", partition=0))
        await producer.abort_transaction()
    async with open_consumer(kafka, group="reads-transactions") as consumer:
        consumer.assign([place])
        await consumer.commit({place: end + 1})
        await end_of(consumer, place, end + 4)  # y, its marker, what was aborted, its marker
    (idle,) = await measure_lag(kafka, ["reads-transactions"])
    assert (idle.records, idle.seconds) == (0, 0.0), "nor behind aborted records"
