"""The process oncall ends and starts again, on a real broker: each alert is raised once and resolved once."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import TopicPartition

from headrace.schemas.events import FeedbackGiven, SdkStatsReported
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.step import Budget
from headrace.schemas.topics import (
    ALERTS,
    BUDGET,
    EVENTS,
    FEEDBACK,
    REJECTED,
    REWARDS,
    SDK_STATS,
    STEPS,
    TRAINING,
    WEIGHTS,
    Topic,
)
from headrace.schemas.wire import Message, decode, record_message
from headrace.streams.oncall.oncall import now_ms
from tests.streams.oncall.test_oncall import Running, alerts_of, until, write_dead_letter

pytestmark = pytest.mark.kafka


async def written_to_alerts(kafka: str) -> int:
    """The end of ``alerts``, with what no reader of committed records sees yet."""
    async with open_consumer(kafka, isolation_level="read_uncommitted") as consumer:
        return sum((await consumer.end_offsets(await partitions_of(consumer, ALERTS))).values())


async def test_an_alert_that_is_hidden_by_an_open_transaction_is_not_raised_again(kafka: str) -> None:
    """Another process was killed in its transaction: until the broker aborts it, no reader sees what follows it."""
    first = await Running(kafka, window_s=3600).ready()
    async with open_producer(kafka, transactional_id="killed") as killed:
        await killed.begin_transaction()
        await (await send(killed, ALERTS, Message(b"r", b"{}", [])))
        before = await written_to_alerts(kafka)
        await write_dead_letter(kafka, 1, REWARDS.name)

        async def raised() -> bool:
            return await written_to_alerts(kafka) > before

        await until(raised)
        await first.end()
        second = Running(kafka, window_s=3600)
        await asyncio.sleep(3)  # rounds in which it could be raised again
        await killed.abort_transaction()
    await second.ready()
    await asyncio.sleep(1)
    await second.end()
    assert [each.details["subject"] for each in await alerts_of(kafka, "oncall_dead_letters")] == [REWARDS.name]


async def test_a_dead_letter_of_an_old_record_that_comes_while_no_process_runs_is_an_alert(kafka: str) -> None:
    """A backlog is processed while oncall is restarted: its dead letters have the times of their records."""
    hour_ago = now_ms() - 3_600_000
    first = await Running(kafka).ready()
    await write_dead_letter(kafka, 5, TRAINING.name, timestamp_ms=hour_ago)
    await until(lambda: _raised(kafka, TRAINING.name, 1))
    await first.end()
    await write_dead_letter(kafka, 6, REJECTED.name, timestamp_ms=hour_ago)
    second = await Running(kafka).ready()
    await until(lambda: _raised(kafka, REJECTED.name, 1))
    await second.end()
    third = await Running(kafka).ready()
    await until(lambda: _raised(kafka, REJECTED.name, 2))  # by their own times, both are out of the window
    await third.end()
    assert await _raised(kafka, TRAINING.name, 2)


async def _raised(kafka: str, topic: str, count: int) -> bool:
    """Whether there are so many alerts about ``topic``: that it has dead letters, and that this is resolved."""
    found = [alert for alert in await alerts_of(kafka, "oncall_dead_letters") if alert.details["subject"] == topic]
    return len(found) == count


_ONCALL = """
import asyncio, sys
from headrace.streams.oncall import oncall, recent, tail
from headrace.streams.oncall.conditions import Limits
recent.FEEDBACK_WAIT_MS = tail.FEEDBACK_WAIT_MS = 500  # two minutes are too long for a test
limits = Limits(
    lag_s=900, hold_s=0.3, step_age_s=0.5, steps_hold_s=0.3, rollout_age_s=0.5, window_s=float(sys.argv[2])
)
config = oncall.OnCallConfig(sys.argv[1], runs=("r",), every_s=0.1, ledger_every_s=0.2, limits=limits)
asyncio.run(oncall.run_oncall(config, stop=asyncio.Event(), ready=lambda: None))
"""
LONG_S, SHORT_S = 3600.0, 1.0
"""Windows of what is counted: while causes come, none leaves it while no process runs; after the repair, all do."""
SLOW = TopicPartition(REWARDS.name, 2)
"""Where a consumer group is behind."""


def started(kafka: str, window_s: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", _ONCALL, kafka, str(window_s)])


def killed(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    assert child.wait() == -signal.SIGKILL, "it ended by itself"


async def kill_at_work(kafka: str, child: "subprocess.Popen[bytes]", rng: random.Random) -> None:
    """Kill it at its start, or soon after it has written something, mostly before that is committed."""
    before, give_up = await written_to_alerts(kafka), time.monotonic() + rng.choice([2.0, 8.0, 8.0])
    while time.monotonic() < give_up and await written_to_alerts(kafka) <= before:
        assert child.poll() is None
    await asyncio.sleep(rng.uniform(0.0, 0.05))
    killed(child)


async def write(kafka: str, topic: Topic, record: Record, name: str) -> None:
    message = record_message(
        record, id=f"{name}-{time.time_ns()}", key=name, source=f"/{name}", time_ms=1_700_000_000_000, subject=name
    )
    async with open_producer(kafka) as producer:
        await (await send(producer, topic, message))


async def is_behind(kafka: str, offset: int) -> None:
    async with open_consumer(kafka, group="headrace-slow") as consumer:
        consumer.assign([SLOW])
        await consumer.commit({SLOW: offset})


async def grant(kafka: str, groups: int) -> None:
    budget = Budget(run="r", version=0, groups_per_step=4, max_steps_ahead=1, max_groups=groups)
    await write(kafka, BUDGET, budget, "r")


async def drop(kafka: str, source: str) -> None:
    for total in (1, 6):
        await write(kafka, SDK_STATS, SdkStatsReported(dropped={"queue_full": total}), source)


CAUSES: list[Callable[[str], Awaitable[None]]] = [
    lambda kafka: write_dead_letter(kafka, 1, EVENTS.name),
    lambda kafka: is_behind(kafka, 0),
    lambda kafka: drop(kafka, "a"),
    lambda kafka: grant(kafka, 8),
    lambda kafka: write(kafka, FEEDBACK, FeedbackGiven(signal="thumb", value=1.0), "nobody"),
    lambda kafka: write_dead_letter(kafka, 2, STEPS.name),
    lambda kafka: drop(kafka, "b"),
    lambda kafka: write_dead_letter(kafka, 3, WEIGHTS.name),
]
ABOUT = {
    ("lag", "headrace-slow"), ("no-steps", "r"), ("silent-samplers", "r"), ("lost-feedback", ""),
    ("sdk-drops", "/a"), ("sdk-drops", "/b"),
    *(("dead-letters", topic.name) for topic in (EVENTS, STEPS, WEIGHTS)),
}  # fmt: skip


async def told(kafka: str, start: int) -> dict[tuple[str, str], list[tuple[str, EpisodeState]]]:
    """Episode and state of the alerts from offset ``start`` on, by condition and subject, of those of this test."""
    found = defaultdict(list)
    async for record in read_to_end(kafka, ALERTS, start={0: start}, decided=True):
        alert = decode(record.headers, record.value)[1]
        assert isinstance(alert, Alert)
        assert alert.episode is not None
        about = (alert.episode.monitor, str(alert.details.get("subject", "")))
        if about in ABOUT:
            found[about].append((alert.episode.id, alert.episode.state))
    return found


async def caused_and_repaired(kafka: str, kills: random.Random | None) -> dict[tuple[str, str], list[EpisodeState]]:
    """States of the alerts of a process over all causes and their repair; with ``kills`` it is killed again and again,
    and another one follows."""
    start = await written_to_alerts(kafka)

    async def until_all(count: int, window_s: float) -> None:
        child = started(kafka, window_s)
        try:
            await until(lambda: _all(count))
            await asyncio.sleep(0.5)  # some rounds more, in which an alert could be raised again
        finally:
            killed(child)

    async def _all(count: int) -> bool:
        found = await told(kafka, start)
        return len(found) >= len(ABOUT) and all(len(states) >= count for states in found.values())

    for number, cause in enumerate(CAUSES):
        await cause(kafka)
        if kills and number % 2:
            await kill_at_work(kafka, started(kafka, LONG_S), kills)
    await until_all(1, LONG_S)
    await is_behind(kafka, 1)
    await grant(kafka, 0)
    for _ in range(3 if kills else 0):
        assert kills is not None
        await kill_at_work(kafka, started(kafka, SHORT_S), kills)
    await until_all(2, SHORT_S)
    found = await told(kafka, start)
    assert all(len({id for id, _ in states}) == 1 for states in found.values())
    return {about: [state for _, state in states] for about, states in found.items()}


async def test_a_process_that_is_killed_again_and_again_raises_and_resolves_each_alert_once(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        long_ago = round(1000 * (time.time() - 3600))
        await (await producer.send(REWARDS.name, b"{}", b"k", SLOW.partition, timestamp_ms=long_ago))
    whole = await caused_and_repaired(kafka, None)
    assert whole == {about: [EpisodeState.OPENED, EpisodeState.RESOLVED] for about in ABOUT}
    assert await caused_and_repaired(kafka, random.Random(5)) == whole
