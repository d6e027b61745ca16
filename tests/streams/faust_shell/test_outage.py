"""While Kafka is frozen or unavailable the process waits, and then repeats the work in progress exactly once."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError

from headrace.deploy.system.children import end_of
from headrace.schemas.topics import REJECTED, REWARDS, TRAINING
from headrace.schemas.wire import Message
from headrace.streams.faust_shell import outage
from headrace.streams.faust_shell.outage import Outages
from headrace.streams.faust_shell.worker import state_topic
from headrace.streams.runtime.owned_partition import (
    TRANSACTION_TIMEOUT_MS,
    OwnedPartition,
    OwnerChanged,
    Ownership,
    create_state_topic,
)
from headrace.streams.runtime.processor import PartitionsRevoked
from headrace.streams.scoring.score import reward_message
from tests.conftest import RunningKafka
from tests.streams.attempts import rewarded
from tests.streams.test_workers import by_id, produce, records, until, worker


class Shell:
    """Counts losses of its partitions, and fails with the given exceptions."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.lost = 0
        self.outages = Outages("test", self.lose)

    async def lose(self) -> None:
        self.lost += 1

    async def attempt(self) -> str:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return "done"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "PAUSE_S", 0.01)


async def test_work_that_fails_while_kafka_is_unavailable_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell(KafkaConnectionError("gone"), OwnerChanged("fenced"), TimeoutError(), OSError("reset"))
    with caplog.at_level(logging.WARNING):
        assert await shell.outages.through(shell.attempt) == "done"
    assert shell.lost == 4
    first, last = caplog.messages
    assert "test has been waiting for Kafka" in first
    assert "it will resume (KafkaConnectionError: " in first
    assert "test resumes after" in last
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("error", [ValueError("ours"), TopicAuthorizationFailedError("rewards")])
async def test_permanent_errors_are_raised(error: Exception) -> None:
    shell = Shell(error)
    with pytest.raises(type(error)):
        await shell.outages.through(shell.attempt)
    assert shell.lost == 0


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
async def test_what_would_leave_the_event_loop_ends_the_worker_as_an_exception_does(error: BaseException) -> None:
    shell = Shell(error)
    with pytest.raises(RuntimeError, match=f"test raised {type(error).__name__}") as raised:
        await shell.outages.through(shell.attempt)
    assert raised.value.__cause__ is error
    assert shell.lost == 0


async def test_revoked_partitions_end_the_retries() -> None:
    shell = Shell(*[KafkaConnectionError("gone")] * 10_000)
    waiting = asyncio.ensure_future(shell.outages.through(shell.attempt))
    await asyncio.sleep(0.05)
    shell.outages.revoked.set()
    with pytest.raises(PartitionsRevoked):
        await waiting
    with pytest.raises(PartitionsRevoked):
        await shell.outages.through(shell.attempt)


async def test_work_in_progress_may_finish_when_partitions_are_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()

    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "done"

    working = asyncio.ensure_future(shell.outages.through(slow))
    await asyncio.sleep(0.01)
    shell.outages.revoked.set()
    assert await working == "done"
    shell.outages.revoked.clear()
    monkeypatch.setattr(outage, "GRACE_S", 0.01)
    hanging = asyncio.ensure_future(shell.outages.through(asyncio.Event().wait))
    await asyncio.sleep(0.01)
    shell.outages.revoked.set()
    with pytest.raises(PartitionsRevoked):
        await hanging


async def test_work_that_keeps_waiting_after_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka, for example, aborts the transaction when it is cancelled, and waits for that."""
    monkeypatch.setattr(outage, "GRACE_S", 0.01)
    monkeypatch.setattr(outage, "END_S", 0.01)
    shell, ended = Shell(), list[str]()

    async def in_a_transaction() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("transaction")

    waiting = asyncio.ensure_future(shell.outages.through(in_a_transaction))
    await asyncio.sleep(0.01)
    shell.outages.revoked.set()
    with pytest.raises(PartitionsRevoked):
        await asyncio.wait_for(waiting, 10)
    assert ended == ["transaction"]


async def test_long_work_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(outage, "REMIND_S", 0.02)
    shell = Shell()

    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "done"

    with caplog.at_level(logging.WARNING):
        assert await shell.outages.through(slow) == "done"
    assert "test has been processing one batch for 0 s: it waits for Kafka, or for judges" in caplog.messages


def pairs(prefix: str, count: int) -> list[Message]:
    """Rewards of ``count`` groups of two, each of which is trained."""
    made = [rewarded(f"{prefix}{n}-{m}", float(m), group=f"{prefix}{n}") for n in range(count) for m in range(2)]
    return [reward_message(each) for each in made]


def decided(bootstrap: str, prefix: str) -> int:
    """Number of groups in ``training``; −1 while a restarted broker does not serve yet. Fails on a duplicate."""
    try:
        found = records(bootstrap, TRAINING, prefix)
    except KafkaError:
        return -1
    assert len(by_id(found)) == len(found)
    return len(found)


async def _fence(bootstrap: str) -> None:
    """Start and stop a producer with the worker's transactional IDs, which fences the worker."""
    state = await create_state_topic(bootstrap, state_topic("group"), partitions=REWARDS.partitions, about="Of group.")
    ownership = Ownership(bootstrap, "headrace-group", (REWARDS,), state, (TRAINING, REJECTED))
    for number in range(REWARDS.partitions):
        await (await OwnedPartition.acquire(ownership, number)).release()


@pytest.mark.kafka
def test_a_worker_fenced_while_it_owns_its_partitions_continues(running_kafka: RunningKafka, tmp_path: Path) -> None:
    kafka = running_kafka.bootstrap
    with worker(kafka, tmp_path, processors=["group"]) as running:
        produce(kafka, REWARDS, pairs("before-", 30))
        until(lambda: decided(kafka, "before-") == 30, "groups are decided", running.log)
        asyncio.run(_fence(kafka))
        produce(kafka, REWARDS, pairs("after-", 30))
        until(lambda: decided(kafka, "after-") == 30, "groups are decided after the fence", running.log)
        # It logs that after its commit, which the groups above show.
        until(lambda: "group resumes after" in running.log.read_text(), "it resumes", running.log)
        assert running.poll() is None, end_of(running.log)
        log = running.log.read_text()
        assert "group has been waiting for Kafka" in log
        assert "Traceback" not in log
        running.terminate()
        assert running.wait(30) == 0, end_of(running.log)


@pytest.mark.kafka
def test_a_worker_survives_a_frozen_and_a_killed_broker(running_kafka: RunningKafka, tmp_path: Path) -> None:
    kafka = running_kafka.bootstrap
    with worker(kafka, tmp_path, processors=["score", "group"]) as running:
        produce(kafka, REWARDS, pairs("calm-", 30))
        until(lambda: decided(kafka, "calm-") == 30, "groups are decided", running.log)
        produce(kafka, REWARDS, pairs("frozen-", 600))
        running_kafka.freeze()
        time.sleep(TRANSACTION_TIMEOUT_MS / 1000 + 10)
        running_kafka.freeze(False)
        until(lambda: decided(kafka, "frozen-") == 600, "groups are decided after the thaw", running.log, 120)
        produce(kafka, REWARDS, pairs("killed-", 600))
        running_kafka.kill()
        time.sleep(10)
        running_kafka.start()
        until(lambda: decided(kafka, "killed-") == 600, "groups are decided after the restart", running.log, 120)
        assert running.poll() is None, end_of(running.log)
        assert "Traceback" not in running.log.read_text()
