"""Batches from the lists of records that Faust carries: size, order, and the generation in which they were read."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from headrace.streams.faust_shell import faust_app
from headrace.streams.faust_shell.faust_app import batches


class Stream:
    """What ``batches`` uses of a stream: Faust's own queue, and the current event."""

    def __init__(self, maxsize: int = 4) -> None:
        self.queue: ThrowableQueue[Any] = ThrowableQueue(maxsize=maxsize, flow_control=FlowControlEvent())
        self.channel = SimpleNamespace(queue=self.queue)
        self.current_event: Any = None

    def put(self, records: Sequence[int], generation: int = 1) -> None:
        event = SimpleNamespace(value=list(records), message=SimpleNamespace(generation_id=generation))
        self.queue.force_put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while not self.queue.empty():
            self.current_event = self.queue.get_nowait()
            yield self.current_event.value


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_app, "BATCH_WITHIN_S", 0.0)
    monkeypatch.setattr(faust_app, "FLOW_WITHIN_S", 0.0)


async def taken(stream: Stream, size: int, generation: int = 1) -> list[tuple[list[Any], int]]:
    app: Any = SimpleNamespace(consumer_generation_id=generation)
    return [batch async for batch in batches(app, stream, size)]


async def test_small_lists_are_joined_and_large_ones_are_cut_in_order() -> None:
    stream = Stream()
    for begin, end in ((0, 2), (2, 3), (3, 20), (20, 21)):
        stream.put(range(begin, end))
    found = await taken(stream, 5)
    assert [number for records, _ in found for number in records] == list(range(21))
    assert max(len(records) for records, _ in found) == 5
    assert found[0] == ([0, 1, 2, 3, 4], 1)


async def test_records_of_an_earlier_generation_are_dropped() -> None:
    stream = Stream()
    stream.put([1, 2], generation=6)
    stream.put([3, 4], generation=7)
    assert await taken(stream, 10, generation=7) == [([3, 4], 7)]


async def test_a_rebalance_between_two_slices_shows_in_their_generation() -> None:
    stream, app = Stream(), SimpleNamespace(consumer_generation_id=7)
    stream.put(range(4), generation=7)
    found = []
    untyped: Any = app
    async for records, generation in batches(untyped, stream, 2):
        found.append((records, generation == app.consumer_generation_id))
        app.consumer_generation_id = 8
    assert found == [([0, 1], True), ([2, 3], False)]


async def test_a_list_that_arrives_while_the_batch_fills_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_app, "BATCH_WITHIN_S", 0.05)
    stream = Stream()
    stream.put([1])
    asyncio.get_running_loop().call_later(0.01, stream.put, [2])
    assert await taken(stream, 5) == [([1, 2], 1)]


async def test_in_a_flow_a_batch_has_longer_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_app, "FLOW_WITHIN_S", 0.1)
    stream, call_later = Stream(), asyncio.get_running_loop().call_later
    stream.put([1])
    app: Any = SimpleNamespace(consumer_generation_id=1)
    found: list[Any] = []
    async for records, _ in batches(app, stream, 5):
        if not found:
            stream.put([2])
            call_later(0.02, stream.put, [3])
        found.append(records)
    assert found == [[1], [2, 3]]


async def test_a_record_after_a_pause_waits_as_little_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_app, "FLOW_WITHIN_S", 60.0)
    times = iter([0.0, 1.0, 62.0, 63.0])  # before and after each of two batches
    monkeypatch.setattr(faust_app, "monotonic", lambda: next(times))
    stream, app = Stream(), SimpleNamespace(consumer_generation_id=1)
    stream.put([1])
    untyped: Any = app
    found: list[Any] = []
    async with asyncio.timeout(10):
        async for records, _ in batches(untyped, stream, 5):
            found.append(records)
            if len(found) == 1:
                stream.put([2])
    assert found == [[1], [2]]


async def test_an_agent_that_is_stopped_while_a_batch_fills_ends_its_batches() -> None:
    stream = Stream()
    stream.put([1])

    def stop() -> None:
        stream.put([2])
        stream.queue._throw(StopAsyncIteration())

    asyncio.get_running_loop().call_soon(stop)
    assert await taken(stream, 5) == []


async def test_taking_a_batch_lets_paused_partitions_fetch_again() -> None:
    stream, resumed = Stream(maxsize=2), []
    for number in range(5):
        stream.put([number])
    stream.queue._pending_pressure_drop_callbacks.update({lambda: resumed.append(0), lambda: resumed.append(1)})
    app: Any = SimpleNamespace(consumer_generation_id=1)
    async for _ in batches(app, stream, 5):
        assert sorted(resumed) == [0, 1], "before the batch is processed"
