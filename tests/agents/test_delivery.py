"""Sessions that end without any acknowledgement are logged and retried with growing pauses."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidMessageError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from headrace.agents import delivery as delivery_module
from headrace.agents.counters import SdkCounters
from headrace.agents.delivery import RECONNECT_MAX_S, EventDelivery
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message


class FailingProducer(AIOKafkaProducer):
    """Answers records with ``errors``, one session each, and then acknowledges them. Only injects faults."""

    def __init__(self, errors: list[KafkaError], taken: list[bytes]) -> None:
        super().__init__(bootstrap_servers="broker:9092")
        self.error = errors.pop(0) if errors else None
        self.taken = taken

    async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is None:
            self.taken.append(value)
            answer.set_result(None)
        else:
            answer.set_exception(self.error)
        return answer

    async def stop(self) -> None:
        self._closed = True  # nothing was started


async def run_until_nothing_waits(delivery: EventDelivery) -> None:
    running = asyncio.create_task(delivery.run())
    async with asyncio.timeout(20):
        while delivery.pending:  # noqa: ASYNC110 - the delivery has no event for it
            await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    "error", [MessageSizeTooLargeError(), RecordListTooLargeError(), InvalidMessageError(), InvalidTopicError()]
)
async def test_a_refused_event_is_counted_and_those_after_it_are_sent(
    error: KafkaError, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters, taken, resolved = SdkCounters(), list[bytes](), list[int]()
    delivery = EventDelivery("broker:9092", {}, counters, resolved.append)

    class Refusing(FailingProducer):
        async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
            self.error = error if value == b"1" else None
            return await super().send(topic, key=key, value=value, headers=headers)

    async def connect() -> FailingProducer:
        return Refusing([], taken)

    monkeypatch.setattr(delivery, "_connect", connect)
    for ticket in range(3):
        delivery.offer(ticket, EVENTS.name, Message(b"k", b"%d" % ticket, ()))
    await run_until_nothing_waits(delivery)
    assert (taken, sorted(resolved)) == ([b"0", b"2"], [0, 1, 2])
    assert (delivery.sent, delivery.pending_bytes, counters.dropped()) == (2, 0, {"refused": 1})


async def test_an_event_of_another_version_s_topic_is_refused_before_the_broker_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a file that another version left: the client would wait for such a topic, and every other event with it."""
    counters, taken, resolved = SdkCounters(), list[bytes](), list[int]()
    delivery = EventDelivery("broker:9092", {}, counters, resolved.append)

    class Waiting(FailingProducer):
        async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
            if topic != EVENTS.name:
                raise UnknownTopicOrPartitionError
            return await super().send(topic, key=key, value=value, headers=headers)

    async def connect() -> FailingProducer:
        return Waiting([], taken)

    monkeypatch.setattr(delivery, "_connect", connect)
    for ticket, topic in enumerate((EVENTS.name, "gone", EVENTS.name)):
        delivery.offer(ticket, topic, Message(b"k", b"%d" % ticket, ()))
    await run_until_nothing_waits(delivery)
    assert (taken, sorted(resolved), counters.dropped()) == ([b"0", b"2"], [0, 1, 2], {"refused": 1})
    counters.wait_until_logged(20)  # not in the next test's log


@pytest.mark.parametrize("error", [InvalidTimestampError(), TopicAuthorizationFailedError()])
async def test_retries_slow_down_if_the_broker_accepts_nothing_and_the_problem_is_logged(
    error: KafkaError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    counters, taken, pauses = SdkCounters(), list[bytes](), list[float]()
    delivery = EventDelivery("broker:9092", {}, counters)
    errors = [error] * 9
    sleep = asyncio.sleep

    async def connect() -> FailingProducer:
        return FailingProducer(errors, taken)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(delivery, "_connect", connect)
    monkeypatch.setattr(delivery_module.asyncio, "sleep", pause)
    for ticket in range(3):
        delivery.offer(ticket, EVENTS.name, Message(b"k", b"%d" % ticket, ()))
    running = asyncio.create_task(delivery.run())
    while delivery.pending and not running.done():
        await sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert taken == [b"0", b"1", b"2"]
    assert (delivery.sent, delivery.pending_bytes, counters.dropped()) == (3, 0, {})
    assert pauses == sorted(pauses)
    assert pauses[0] < 1 < pauses[-1] == RECONNECT_MAX_S
    counters.wait_until_logged(20)
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"Kafka at broker:9092 does not accept events ({error!r}): 3 events wait, retrying"]


@pytest.mark.parametrize("where", ["start", "send", "answer"])
async def test_a_cancellation_out_of_the_client_is_a_failure_like_any_other(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a gateway nothing else would notice: a task group takes a cancelled task for one that was to end."""
    monkeypatch.setattr(delivery_module, "RECONNECT_MIN_S", 0.0)
    taken, cancels = list[bytes](), [where]
    delivery = EventDelivery("broker:9092", {}, SdkCounters())

    class Cancelling(FailingProducer):
        async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
            if cancels == ["send"]:
                cancels.clear()
                raise asyncio.CancelledError
            answer = await super().send(topic, key=key, value=value, headers=headers)
            if cancels == ["answer"]:
                cancels.clear()
                answer = asyncio.get_running_loop().create_future()
                answer.cancel()
            return answer

    async def start(options: object) -> FailingProducer:
        if cancels == ["start"]:
            cancels.clear()
            raise asyncio.CancelledError
        return Cancelling([], taken)

    monkeypatch.setattr(delivery, "_unused_producer", start)
    delivery.offer(0, EVENTS.name, Message(b"k", b"0", ()))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(delivery.run())
        async with asyncio.timeout(20):
            while delivery.pending and not running.done():  # noqa: ASYNC110 - the delivery has no event for it
                await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
    assert (delivery.sent, taken[-1]) == (1, b"0")
    assert running.cancelled()


async def test_events_in_flight_are_given_back_if_the_stop_of_a_failed_session_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a process cancels the delivery, and spools what it gives back: also while a broken connection is
    being closed."""
    stopping = asyncio.Event()

    class Hanging(FailingProducer):
        async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
            if value == b"1":
                raise KafkaError
            return asyncio.get_running_loop().create_future()

        async def stop(self) -> None:
            self._closed = True
            stopping.set()
            await asyncio.Event().wait()

    async def connect() -> FailingProducer:
        return Hanging([], [])

    delivery = EventDelivery("broker:9092", {}, SdkCounters())
    monkeypatch.setattr(delivery, "_connect", connect)
    for ticket in range(3):
        delivery.offer(ticket, EVENTS.name, Message(b"k", b"%d" % ticket, ()))
    running = asyncio.create_task(delivery.run())
    await stopping.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert [ticket for ticket, _, _ in delivery.withdraw(lambda ticket: True)] == [0, 1, 2]
    assert (delivery.pending, delivery.pending_bytes) == (0, 0)


async def test_nothing_is_sent_beside_an_event_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch would hold others, so that the broker's answer again told nothing about it."""
    sent = list[bytes]()
    answers: list[asyncio.Future[None]] = []

    class Slow(FailingProducer):
        async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
            sent.append(value)
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

    async def connect() -> FailingProducer:
        return Slow([], [])

    delivery = EventDelivery("broker:9092", {}, SdkCounters())
    monkeypatch.setattr(delivery, "_connect", connect)
    delivery._doubts[0] = delivery_module._Doubt(accepted_before=0)
    for ticket in range(3):
        delivery.offer(ticket, EVENTS.name, Message(b"k", b"%d" % ticket, ()))
    running = asyncio.create_task(delivery.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert sent == [b"0"]
    answers[0].set_result(None)
    for _ in range(20):
        await asyncio.sleep(0)
    assert sent == [b"0", b"1", b"2"]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
