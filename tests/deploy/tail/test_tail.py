"""`headrace tail` with a real broker: any start position, with transactions and unreadable records in between."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.deploy.kafka import broker as deployed
from headrace.deploy.system.ports import HOST, free_port
from headrace.deploy.tail import reading
from headrace.deploy.tail.start import StartPosition
from headrace.schemas.events import ToolCalled
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS, FEEDBACK, REJECTED, STEPS
from headrace.schemas.wire import Message
from tests.clocks import with_producers_time
from tests.expired import delete_before

CALLS = 6


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def tail(kafka: str, topic: str, *arguments: str) -> list[str]:
    shown = headrace("tail", topic, "--kafka", kafka, *arguments)
    assert shown.exit_code == 0, shown.output
    return shown.output.splitlines()


@pytest.fixture(scope="module")
def log(kafka: str) -> str:
    """`events` with one record of every type, an aborted transaction, and then calls, one per transaction."""
    with_producers_time(kafka, EVENTS, FEEDBACK)
    asyncio.run(fill(kafka))
    return kafka


async def fill(kafka: str) -> None:
    call = EXAMPLES[ToolCalled.TYPE].message

    async def send(topic: str, value: bytes | None, message: Message, seconds_ago: int) -> None:
        time_ms = (int(time.time()) - seconds_ago) * 1000
        await producer.send(topic, value, message.key, headers=message.headers, timestamp_ms=time_ms)

    async with open_producer(kafka, transactional_id="test") as producer:
        async with producer.transaction():
            for example in EXAMPLES.values():
                await send(example.topic.name, example.message.value, example.message, 1200)
            await send("events", b'{"call_id": "c"', call, 1200)
            await send("events", None, Message(b"k", b"", [("ce_type", b"x")]), 1200)
        await producer.begin_transaction()
        await send("events", b"never seen", call, 1200)
        await producer.abort_transaction()
        for number in range(CALLS):
            async with producer.transaction():
                value = json.dumps({"call_id": f"n{number}", "tool": "count"}).encode()
                await send("events", value, call, 600 - number)


@pytest.mark.kafka
def test_the_last_records_are_in_order_of_time_despite_transaction_markers(log: str) -> None:
    shown = [json.loads(line) for line in tail(log, "events", "--from", "-4", "--json")]
    assert [record["data"]["call_id"] for record in shown] == ["n2", "n3", "n4", "n5"]
    assert len(tail(log, "events")) == 10


@pytest.mark.kafka
def test_all_committed_records_are_shown_including_unreadable_ones(log: str) -> None:
    lines = tail(log, "events", "--from", "beginning")
    assert len(lines) == sum(example.topic.name == "events" for example in EXAMPLES.values()) + 2 + CALLS
    assert sum("unreadable, bad_json" in line for line in lines) == 1
    assert sum("unreadable, bad_headers" in line for line in lines) == 1
    assert not any("never seen" in line for line in lines)


@pytest.mark.kafka
def test_filters_limit_and_start_time(log: str) -> None:
    assert len(tail(log, "events", "--where", "tool=count", "--limit", "2")) == 2
    assert len(tail(log, "events", "--from", "15m", "--type", "tool.called")) == CALLS
    assert tail(log, "events", "--from", "now") == []
    (line,) = tail(log, REJECTED.name, "--where", "reason=zero_variance_all_fail", "--full")
    assert "zero_variance_all_fail at group" in line


@pytest.mark.kafka
async def test_partitions_are_merged_in_order_of_time_with_any_batch_size(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "AT_ONCE", 3)
    topic = replace(REJECTED, name="merged")
    await create_topics(kafka, [topic])
    sent = [(partition, 1_000 * number + partition) for partition in range(4) for number in range(10)]
    async with open_producer(kafka) as producer:
        for partition, time_ms in sent:
            await producer.send(topic.name, b"x", partition=partition, timestamp_ms=time_ms)
    for start, count in ((StartPosition(), 40), (StartPosition(time_ms=5_000), 20), (StartPosition(last=7), 7)):
        found = [record async for batch in reading.read(kafka, topic.name, start) for record in batch]
        found_order = [(record.partition, record.timestamp) for record in found]
        assert found_order == sorted(sent, key=lambda each: each[1])[-count:]


@pytest.mark.kafka
async def test_records_that_arrive_during_the_first_read_are_followed(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_offsets = AIOKafkaConsumer.end_offsets

    async with open_producer(kafka) as producer:

        async def send(*values: bytes) -> None:
            for value in values:
                await producer.send_and_wait(STEPS.name, value)

        async def then_more(self: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            ends: dict[TopicPartition, int] = await end_offsets(self, partitions)
            await send(b"c", b"d")
            return ends

        await send(b"a", b"b")
        monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", then_more)
        found: list[bytes | None] = []
        records = reading.read(kafka, STEPS.name, StartPosition(), follow=True)
        async with asyncio.timeout(60), aclosing(records) as batches:
            while found[-1:] != [b"d"]:
                found += [record.value for record in await anext(batches)]
    assert found[-4:] == [b"a", b"b", b"c", b"d"]


@pytest.mark.kafka
async def test_records_that_expire_while_they_are_followed_are_reported(
    kafka: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = replace(REJECTED, name="expiring", partitions=1)
    await create_topics(kafka, [topic])
    async with open_producer(kafka) as producer:
        records = reading.read(kafka, topic.name, StartPosition(last=0), follow=True)
        async with asyncio.timeout(60), aclosing(records) as batches:
            following = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(1)
            await producer.send_and_wait(topic.name, b"0")
            found = [record.value for record in await following]
            await producer.send_and_wait(topic.name, b"1")
            await asyncio.sleep(1)  # it is fetched; the others are not while it is not taken
            for number in range(2, 7):
                await producer.send_and_wait(topic.name, b"%d" % number)
            await delete_before(kafka, TopicPartition(topic.name, 0), 5)
            while found[-1:] != [b"6"]:
                found += [record.value for record in await anext(batches)]
    assert found == [b"0", b"1", b"5", b"6"]
    assert caplog.text.count("tail: expiring[0] starts at 5, but was to be read from 2 on") == 1


@pytest.mark.kafka
def test_raw_prints_the_unchanged_value(log: str) -> None:
    assert tail(log, "rewards", "--raw") == [EXAMPLES["headrace.trajectory.scored.v1"].message.value.decode()]


@pytest.mark.kafka
def test_ctrl_c_ends_follow_without_an_error(log: str, tmp_path: Path) -> None:
    output = tmp_path / "followed"
    argv = [sys.executable, "-m", "headrace.deploy.cli", "tail", "rewards", "-f", "--json", "--kafka", log]
    # The test may be a shell's background job, which ignores Ctrl-C, and so would the program that it starts.
    with output.open("w") as target:
        follower = subprocess.Popen(
            argv,
            stdout=target,
            stderr=subprocess.PIPE,
            env=os.environ | {"COLUMNS": "80"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        wait_for_lines(output, 1, follower)
        send_reward(log)
        wait_for_lines(output, 2, follower)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(timeout=30) == 0
        assert follower.stderr is not None
        assert b"Traceback" not in follower.stderr.read()
    finally:
        follower.kill()
        follower.communicate()


def send_reward(kafka: str) -> None:
    async def send() -> None:
        message = EXAMPLES["headrace.trajectory.scored.v1"].message
        async with open_producer(kafka) as producer:
            await producer.send_and_wait("rewards", message.value, message.key, headers=message.headers)

    asyncio.run(send())


def wait_for_lines(file: Path, count: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while len(file.read_text().splitlines()) < count:
        assert process.poll() is None
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.05)


@pytest.mark.kafka
def test_an_unknown_topic_is_an_error_that_lists_the_brokers_topics(log: str) -> None:
    shown = headrace("tail", "rewardz", "--kafka", log)
    assert shown.exit_code == 1
    assert "no topic 'rewardz'" in shown.output
    assert "rewards" in shown.output


def test_wrong_options_are_errors_that_list_the_valid_forms() -> None:
    assert "neither beginning, now" in headrace("tail", "events", "--from", "soon").output
    assert "as in total>0.5" in headrace("tail", "events", "--where", "soon").output
    assert "Use either --json or --raw" in headrace("tail", "events", "--json", "--raw").output


def test_an_unavailable_broker_is_reported_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "LISTENS_S", 0.3)
    shown = headrace("tail", "events", "--kafka", f"{HOST}:{free_port()}")
    assert shown.exit_code == 1
    assert "HEADRACE_KAFKA" in shown.output
    assert "Traceback" not in shown.output
