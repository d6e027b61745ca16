"""The process oncall on a real broker: the ledger, restarts, and a second process."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiokafka.errors import InvalidTxnState
from aiokafka.producer.sender import AddPartitionsToTxnHandler, EndTxnHandler

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.records.alert import Alert, EpisodeState, Severity
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, REJECTED, STEPS, TOPICS
from headrace.schemas.wire import Message, decode, record_message
from headrace.streams.lag import ConsumerLag
from headrace.streams.ledger.tally import LedgerTally
from headrace.streams.oncall import oncall as oncall_module
from headrace.streams.oncall.conditions import Found, Limits
from headrace.streams.oncall.oncall import (
    TRANSACTIONAL_ID,
    Checked,
    Measured,
    OnCallConfig,
    contradictions,
    lag_by_group,
    now_ms,
    run_oncall,
    steady_clock,
    values_of,
)
from headrace.streams.oncall.recent import FEEDBACK_WAIT_MS, Recent
from tests.streams.oncall.test_recent import letter

SOON_S = 40.0


def test_a_group_is_as_late_as_its_latest_partition() -> None:
    lags = [
        ConsumerLag("sink", "events", 0, 5, 1.0),
        ConsumerLag("sink", "events", 1, 7, 9.0),
        ConsumerLag("score", "trajectories", 0, 0, 0.0),
    ]
    found = {each.subject: (each.value, dict(each.details)) for each in lag_by_group(lags)}
    assert found == {
        "sink": (9.0, {"topic": "events", "partition": 1, "records": 12}),
        "score": (0.0, {"topic": "trajectories", "partition": 0, "records": 0}),
    }


def test_contradictions_of_the_ledger_are_counted_and_three_are_named() -> None:
    ledger = LedgerTally().ledger()
    assert contradictions(ledger) == []
    wrong = replace(ledger, adds_up=False, conflicting=5, unreadable=2, conflicts=[f"t{number}" for number in range(5)])
    named = {"contradiction 1": "t0", "contradiction 2": "t1", "contradiction 3": "t2"}
    assert contradictions(wrong) == [Found("", 7, details={"unreadable": 2, **named})]
    assert contradictions(replace(ledger, adds_up=False)) == [Found("", 1, details={"unreadable": 0})]


def test_feedback_is_not_lost_while_the_ledger_is_behind() -> None:
    """Under load, or while Kafka does not answer, the ledger lacks the newest trajectories for minutes."""
    recent = Recent((), window_s=600)
    recent.add_feedback("new", 100_000)
    empty = LedgerTally().ledger()
    known = Checked(empty, ("old",), at_ms=90_000)
    assert values_of(recent, None, known, 100_000 + 2 * FEEDBACK_WAIT_MS)["lost-feedback"] == []
    caught_up = Checked(empty, ("old",), at_ms=100_000 + FEEDBACK_WAIT_MS)
    (lost,) = values_of(recent, None, caught_up, caught_up.at_ms)["lost-feedback"]
    assert (lost.value, lost.details) == (1, {"trajectory": "new"})


@pytest.mark.parametrize("hours", [-1, 24])
def test_a_clock_that_is_set_ages_nothing_and_makes_nothing_young(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    clock_ms, wall_ms = steady_clock(), now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000 * (wall_ms + 3_600_000 * hours))
    assert now_ms() == wall_ms + 3_600_000 * hours
    assert wall_ms - 60_000 < clock_ms() < wall_ms + 60_000


@pytest.mark.parametrize("setting", [{"every_s": 0}, {"ledger_every_s": -1}])
def test_settings_that_make_no_sense_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        OnCallConfig("localhost:9092", **setting)  # type: ignore[arg-type]


async def alerts_of(kafka: str, kind: str) -> list[Alert]:
    found = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, ALERTS, decided=True)]
    return [each for each in found if isinstance(each, Alert) and each.kind == kind]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await holds():  # noqa: ASYNC110 - another task writes it
            await asyncio.sleep(0.2)


class Running:
    """A process of its own, in this one."""

    def __init__(self, kafka: str, **limits: float) -> None:
        self.stop, self._ready = asyncio.Event(), asyncio.Event()
        self.measured: list[Measured] = []
        config = OnCallConfig(kafka, every_s=0.3, ledger_every_s=0.5, limits=Limits(**limits))
        self.task = asyncio.create_task(
            run_oncall(config, stop=self.stop, ready=self._ready.set, watch=self.measured.append)
        )

    async def ready(self) -> "Running":
        await asyncio.wait_for(self._ready.wait(), SOON_S)
        return self

    async def end(self) -> None:
        self.stop.set()
        await self.task


async def write_dead_letter(kafka: str, offset: int, topic: str = "events", *, timestamp_ms: int | None = None) -> None:
    """Write a dead letter; its time is now, unless ``timestamp_ms`` (Unix) is given."""
    broken = letter(topic, DeadLetterError.BAD_JSON).model_copy(update={"offset": offset})
    message: Message = record_message(
        broken, id=f"dead-{offset}", key="events:0", source="/t", time_ms=1_700_000_000_000, subject="events"
    )
    async with open_producer(kafka) as producer:
        sent = await producer.send(
            DEAD_LETTERS.name, message.value, message.key, headers=message.headers, timestamp_ms=timestamp_ms
        )
        await sent


@pytest.mark.kafka
async def test_a_restarted_process_resolves_what_its_predecessor_opened(kafka: str) -> None:
    first = await Running(kafka, window_s=4).ready()
    await write_dead_letter(kafka, 1)

    async def told() -> bool:
        return bool(await alerts_of(kafka, "oncall_dead_letters"))

    await until(told)
    await first.end()
    second = await Running(kafka, window_s=4).ready()

    async def ended() -> bool:
        return len(await alerts_of(kafka, "oncall_dead_letters")) > 1

    await until(ended)
    await second.end()
    states = [each.episode.state for each in await alerts_of(kafka, "oncall_dead_letters") if each.episode]
    assert states == [EpisodeState.OPENED, EpisodeState.RESOLVED]
    assert {"kafka"} <= second.measured[0].ages().keys()


@pytest.mark.kafka
async def test_a_second_process_takes_over_and_an_episode_is_reported_once(kafka: str) -> None:
    known = len(await alerts_of(kafka, "oncall_dead_letters"))
    first = await Running(kafka).ready()
    second = await Running(kafka).ready()
    # The first notices with the next alert that it wants to write, unless it reads the second's alert before.
    topics = [topic.name for topic in TOPICS]
    for written, topic in enumerate(topics, start=1):
        await write_dead_letter(kafka, written + 1, topic)

        async def told(written: int = written) -> bool:
            return len(await alerts_of(kafka, "oncall_dead_letters")) >= known + written

        await until(told)
        if first.task.done():
            break
    with pytest.raises(OperatorError, match="another process oncall has taken over"):
        await first.end()
    await second.end()
    alerts = (await alerts_of(kafka, "oncall_dead_letters"))[known:]
    assert [each.details["subject"] for each in alerts] == topics[:written], "each once"


@pytest.mark.kafka
async def test_a_dead_letter_of_an_old_record_is_an_alert_when_it_arrives(kafka: str) -> None:
    """Dead letters have their records' timestamps: those of a backlog are hours old, and some clocks are wrong."""

    async def opened_and_resolved(count: int | None = None) -> bool:
        found = [each.episode.state for each in await alerts_of(kafka, "oncall_dead_letters") if each.episode]
        opened = found.count(EpisodeState.OPENED)
        return opened == found.count(EpisodeState.RESOLVED) and (count is None or opened == count)

    running = await Running(kafka, window_s=4).ready()
    await until(opened_and_resolved)
    known = len(await alerts_of(kafka, "oncall_dead_letters")) // 2
    for number, timestamp_ms in enumerate((now_ms() - 3_600_000, 1, now_ms() + 1_800_000), 1):
        await write_dead_letter(kafka, 10 + number, timestamp_ms=timestamp_ms)
        await until(partial(opened_and_resolved, known + number))
    await running.end()


@pytest.mark.kafka
async def test_an_alert_ends_in_time_although_the_clock_is_set_back(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def states() -> list[EpisodeState]:
        alerts = await alerts_of(kafka, "oncall_dead_letters")
        return [each.episode.state for each in alerts if each.episode and each.details["subject"] == STEPS.name]

    running = await Running(kafka, window_s=4).ready()
    await write_dead_letter(kafka, 30, STEPS.name)
    await until(lambda: _is(states, [EpisodeState.OPENED]))
    monkeypatch.setattr(oncall_module, "now_ms", lambda: now_ms() - 3_600_000)
    await until(lambda: _is(states, [EpisodeState.OPENED, EpisodeState.RESOLVED]))
    await running.end()


async def _is(states: Callable[[], Awaitable[list[EpisodeState]]], expected: list[EpisodeState]) -> bool:
    return await states() == expected


@pytest.mark.kafka
async def test_a_ledger_that_contradicts_itself_is_an_alert(kafka: str) -> None:
    running = await Running(kafka, hold_s=0.2).ready()
    orphan = Rejection(
        trajectory_id="nobody",
        trajectory=Reference(partition=0, offset=0),
        stage=Stage.GROUP,
        reason=Reason.NO_GROUP,
    )
    message = record_message(
        orphan, id="orphan", key="nobody", source="/t", time_ms=1_700_000_000_000, subject="nobody"
    )
    async with open_producer(kafka) as producer:
        await (await send(producer, REJECTED, message))

    async def told() -> bool:
        return bool(await alerts_of(kafka, "oncall_ledger_mismatch"))

    await until(told)
    await running.end()
    (alert,) = await alerts_of(kafka, "oncall_ledger_mismatch")
    assert alert.severity is Severity.CRITICAL
    assert "nobody" in alert.details["contradiction 1"]


@pytest.mark.kafka
@pytest.mark.parametrize("handler", [EndTxnHandler, AddPartitionsToTxnHandler])
async def test_an_alert_is_written_once_although_its_transaction_ended_with_an_error(
    kafka: str, monkeypatch: pytest.MonkeyPatch, handler: type[EndTxnHandler] | type[AddPartitionsToTxnHandler]
) -> None:
    """The end of the first is committed and reported as failed; of the second nothing was written."""
    failed: list[str] = []
    handle = handler.handle_response

    def fail_once(self: EndTxnHandler | AddPartitionsToTxnHandler, response: Any) -> float | None:
        if not failed and self._sender._txn_manager.transactional_id == TRANSACTIONAL_ID:
            failed.append("once")
            raise InvalidTxnState
        return handle(self, response)

    known = {alert.details["subject"] for alert in await alerts_of(kafka, "oncall_dead_letters")}
    topic = next(topic.name for topic in TOPICS if topic.name not in known)

    async def written() -> int:
        return [each.details["subject"] for each in await alerts_of(kafka, "oncall_dead_letters")].count(topic)

    async def told() -> bool:
        return await written() > 0

    running = await Running(kafka, window_s=3600).ready()
    monkeypatch.setattr(handler, "handle_response", fail_once)
    await write_dead_letter(kafka, 1, topic)
    await until(told)
    await asyncio.sleep(2)  # rounds in which it could be written again
    await running.end()
    assert (failed, await written()) == (["once"], 1)
