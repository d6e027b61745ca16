"""Events that the broker refuses with an error that the client does not know: one of them stops no others."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, PolicyViolationError, UnknownError

from headrace.agents import delivery as delivery_module
from headrace.agents.counters import SdkCounters
from headrace.agents.delivery import MAX_REFUSALS, EventDelivery
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.schemas.wire import Message


class Broker:
    """Answers batches as a broker does: a refused one fails whole, and so does what follows it in its session. Only
    injects faults."""

    def __init__(self, is_refused: Callable[[str, bytes], bool], error: KafkaError) -> None:
        """``is_refused``: whether a record of a topic, with a value, is."""
        self.is_refused = is_refused
        self.error = error
        self.taken: list[bytes] = []
        """Values of what was accepted."""
        self.batches: list[list[bytes]] = []
        """Values of each batch of events."""

    async def producer(self) -> "Producer":
        """A session."""
        return Producer(self)


class Producer(AIOKafkaProducer):
    """What is sent before the event loop's next round is a batch for each topic."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(bootstrap_servers="broker:9092")
        self.broker = broker
        self.broken: set[str] = set()
        self.batches: dict[str, list[tuple[bytes, asyncio.Future[None]]]] = {}

    async def send(self, topic: str, *, key: bytes, value: bytes, headers: Any) -> "asyncio.Future[None]":
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if topic not in self.batches:
            self.batches[topic] = []
            asyncio.get_running_loop().call_soon(self._answer, topic)
        self.batches[topic].append((value, answer))
        return answer

    def _answer(self, topic: str) -> None:
        batch = self.batches.pop(topic)
        values = [value for value, _ in batch]
        self.broker.batches.append(values)
        error: KafkaError | None = None
        if topic in self.broken:
            error = OutOfOrderSequenceNumber()
        elif any(self.broker.is_refused(topic, value) for value in values):
            self.broken.add(topic)
            error = self.broker.error
        else:
            self.broker.taken += values
        for _, answer in batch:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    async def stop(self) -> None:
        self._closed = True  # nothing was started


class Run:
    """A delivery to a broker, at work."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counters = SdkCounters()
        self.delivery = EventDelivery("broker:9092", {}, self.counters)
        monkeypatch.setattr(self.delivery, "_connect", broker.producer)
        monkeypatch.setattr(delivery_module, "RECONNECT_MIN_S", 0.0)
        monkeypatch.setattr(delivery_module, "RECONNECT_MAX_S", 0.0)

    def offer(self, *values: int, topic: str = EVENTS.name) -> None:
        for value in values:
            self.delivery.offer(value, topic, Message(b"k", b"%d" % value, ()))

    async def until(self, is_met: Callable[[], bool]) -> None:
        running = asyncio.create_task(self.delivery.run())
        async with asyncio.timeout(20):
            while not is_met():  # noqa: ASYNC110 - the delivery has no event for it
                await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("error", [UnknownError(), PolicyViolationError()])
@pytest.mark.parametrize("bad", [{2}, {0}, {2, 3}, {0, 2, 4}])
async def test_an_event_that_the_broker_never_takes_is_counted_and_the_others_are_sent(
    error: KafkaError, bad: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "REFUSED_S", 0.0)
    broker = Broker(lambda topic, value: int(value) in bad, error)
    run = Run(broker, monkeypatch)
    run.offer(*range(6))
    await run.until(lambda: not run.delivery.pending)
    assert broker.taken == [b"%d" % value for value in range(6) if value not in bad]
    assert run.counters.dropped() == {"refused": len(bad)}
    assert (run.delivery.sent, run.delivery.pending_bytes, run.delivery.waiting) == (6 - len(bad), 0, 0)
    for value in bad:
        assert broker.batches.count([b"%d" % value]) == MAX_REFUSALS


async def test_events_get_past_one_in_doubt_long_before_it_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(lambda topic, value: value == b"2", UnknownError())
    run = Run(broker, monkeypatch)
    run.offer(*range(5))
    await run.until(lambda: run.delivery.sent == 4)
    assert broker.taken == [b"0", b"1", b"3", b"4"]
    assert (run.delivery.pending, run.delivery.waiting, run.counters.dropped()) == (1, 1, {})
    assert [run.delivery.resolved_up_to(ticket) for ticket in (1, 2, 4)] == [True, False, False]
    # The spool gets it, too.
    assert [each[0] for each in run.delivery.withdraw(lambda ticket: True)] == [2]
    assert (run.delivery.pending, run.delivery.pending_bytes, run.delivery.resolved_up_to(4)) == (0, 0, True)


@pytest.mark.parametrize("accepts", [EVENTS.name, FEEDBACK.name])
async def test_nothing_is_dropped_while_the_broker_takes_nothing_of_a_topic(
    accepts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "REFUSED_S", 0.0)
    refuses = True
    broker = Broker(lambda topic, value: refuses and topic != accepts, UnknownError())
    run = Run(broker, monkeypatch)
    run.offer(0, 1, 2, topic=FEEDBACK.name if accepts == EVENTS.name else EVENTS.name)
    run.offer(10, 11, topic=accepts)
    await run.until(lambda: len(broker.batches) > 50)
    assert (broker.taken, run.counters.dropped()) == ([b"10", b"11"], {})
    refuses = False
    await run.until(lambda: not run.delivery.pending)
    assert sorted(map(int, broker.taken)) == [0, 1, 2, 10, 11]
    assert run.counters.dropped() == {}


async def test_once_the_broker_takes_events_again_those_refused_once_follow_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = 3  # of the batch, and of two events alone
    run: Run

    def is_refused(topic: str, value: bytes) -> bool:
        return len(broker.batches) <= refusals

    broker = Broker(is_refused, UnknownError())
    run = Run(broker, monkeypatch)
    run.offer(*range(4))
    await run.until(lambda: not run.delivery.pending)
    assert broker.batches == [[b"0", b"1", b"2", b"3"], [b"0"], [b"1"], [b"2"], [b"0"], [b"1"], [b"3"]]
    assert run.counters.dropped() == {}
